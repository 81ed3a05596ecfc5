"""The writing of a checkpoint: companions, a full disk, and memory."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from stock_checkpoints import files_of
from transformers import Qwen3Config, Qwen3ForCausalLM

from wedlm import convert_to_wedlm
from wedlm.checkpoints import plan
from wedlm.checkpoints.errors import CheckpointError


def test_licences_and_templates_are_copied_and_code_of_others_is_not(source, tmp_path):
    (source / "additional_chat_templates").mkdir()
    copied = {"LICENSE": "free", "NOTICE.txt": "ours", "additional_chat_templates/tool.jinja": "{{ tools }}"}
    for name, text in {**copied, "README.md": "theirs", "modeling_other.py": "raise", "optimizer.pt": "x"}.items():
        (source / name).write_text(text)
    convert_to_wedlm(source, tmp_path / "wedlm")
    files = files_of(tmp_path / "wedlm")
    assert {name: files[name].decode() for name in copied} == copied
    assert not {"README.md", "modeling_other.py", "optimizer.pt"} & files.keys()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_disk_that_is_full_in_the_middle(source, tmp_path, monkeypatch, overwrite):
    if overwrite:
        convert_to_wedlm(source, tmp_path / "wedlm")
    before = files_of(tmp_path)
    original = plan.write_shard

    def fill(shard, path, *arguments):
        original(shard, path, *arguments)
        if "00002" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(plan, "write_shard", fill)
    with pytest.raises(CheckpointError, match=r"could not be written \(.*No space left on device\) and is as"):
        convert_to_wedlm(source, tmp_path / "wedlm", overwrite=overwrite)
    assert files_of(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1 + overwrite


CONVERT = """
import sys
from pathlib import Path
from threading import Event, Thread
from wedlm import convert_to_autoregressive, convert_to_wedlm
def held():  # without the pages of mapped files, which the system takes back when it needs them
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])
def watch():
    while not end.wait(0.002):
        seen.append(held())
end, seen, (source, wedlm, back) = Event(), [held()], sys.argv[1:]
watcher = Thread(target=watch)
watcher.start()
convert_to_wedlm(source, wedlm)
convert_to_autoregressive(wedlm, back)
end.set()
watcher.join()
print(max(seen) - seen[0])
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
