"""The writing of a checkpoint: companions, disk space, progress and memory."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from stock_checkpoints import assert_refused, edit, files_of
from transformers import Qwen3Config, Qwen3ForCausalLM

from wedlm import convert_to_wedlm
from wedlm.checkpoints import plan
from wedlm.checkpoints.errors import CheckpointError


def test_what_comes_along(source, tmp_path):
    """Licences and templates are copied, code of others is not."""
    (source / "additional_chat_templates").mkdir()
    come = {"LICENSE": "free", "NOTICE.txt": "ours", "additional_chat_templates/tool.jinja": "{{ tools }}"}
    for name, text in {**come, "README.md": "theirs", "modeling_other.py": "raise", "optimizer.pt": "pickle"}.items():
        (source / name).write_text(text)
    convert_to_wedlm(source, tmp_path / "wedlm")
    files = files_of(tmp_path / "wedlm")
    assert {name: files[name].decode() for name in come} == come
    assert not {"README.md", "modeling_other.py", "optimizer.pt"} & files.keys()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_disk_that_is_full_in_the_middle(source, tmp_path, monkeypatch, overwrite, number):
    if overwrite:
        convert_to_wedlm(source, tmp_path / "wedlm")
    before = files_of(tmp_path)
    original = plan.write_shard

    def fill(shard, path, *arguments):
        original(shard, path, *arguments)
        if "00002" in path.name:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(plan, "write_shard", fill)
    with pytest.raises(CheckpointError, match=rf"could not be written \(.*{os.strerror(number)}\) and is as"):
        convert_to_wedlm(source, tmp_path / "wedlm", overwrite=overwrite)
    assert files_of(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1 + overwrite


def test_a_bar_for_every_shard(source, tmp_path, capfd):
    enable_progress_bars()
    try:
        convert_to_wedlm(source, tmp_path / "wedlm")
    finally:
        disable_progress_bars()
    err = capfd.readouterr().err
    for i in (1, 2, 3):
        assert f"model-0000{i}-of-00003.safetensors ({i}/3): 100%" in err


CONVERT = """
import sys
from pathlib import Path
from wedlm import convert_to_autoregressive, convert_to_wedlm
def peak():  # getrusage() would begin with the peak of the parent process
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
before, (source, wedlm, back) = peak(), sys.argv[1:]
convert_to_wedlm(source, wedlm)
convert_to_autoregressive(wedlm, back)
print(peak() - before)
"""


@pytest.mark.slow
def test_a_conversion_holds_no_more_than_two_shards(tmp_path):
    """The vocabulary is full, so the embedding and the head grow by a token, and their shards are written anew."""
    folders = source, _, back = [tmp_path / name for name in ("source", "wedlm", "back")]
    config = Qwen3Config(
        vocab_size=48_000, hidden_size=1024, intermediate_size=8000, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(source, max_shard_size="100MB")
    shards = files_of(source)
    largest = max(map(len, shards.values()))
    command = [sys.executable, "-c", CONVERT, *map(str, folders)]
    more = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    assert largest > 90e6 and more < 2 * largest
    kept = files_of(back)
    assert all(kept[name] == content for name, content in shards.items() if name.endswith(".safetensors"))


# --- Refusals ---


REFUSED = {
    "a tokenizer that does not load": (
        lambda folder: edit(folder / "tokenizer_config.json", tokenizer_class=7),
        "The tokenizer in .* cannot be loaded .*; correct its files",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])
