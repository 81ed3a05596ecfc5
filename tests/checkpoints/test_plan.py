"""The writing of a checkpoint: companions, disk space, progress and memory."""

import errno
import json
import os
import subprocess
import sys

import pytest
from helpers import REPOSITORY
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from stock_checkpoints import assert_refused, edit, files_of

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


def measured(tmp_path, gigabytes):
    command = [sys.executable, REPOSITORY / "benchmarks" / "convert_memory.py", "--gigabytes", str(gigabytes)]
    subprocess.run([*command, "--out", tmp_path / "memory.json"], check=True, capture_output=True)
    return json.loads((tmp_path / "memory.json").read_text())


@pytest.mark.slow
def test_memory_of_a_small_conversion(tmp_path):
    report = measured(tmp_path, 0.4)
    assert report.keys() == {"command", "commit", "versions", "device", "threads", "results"}
    assert [result["function"] for result in report["results"]] == ["convert_to_wedlm", "convert_to_autoregressive"]
    for result in report["results"]:  # 400 MB in shards of 100 MB; the model without weights takes 50 MB
        assert result["peak_bytes"] - result["peak_bytes_after_imports"] < 2 * result["largest_shard_bytes"]


@pytest.mark.slow
def test_memory_of_a_large_conversion(tmp_path):
    assert_within_bound(measured(tmp_path, 2))


def test_the_recorded_memory_is_within_its_bound():
    assert_within_bound(json.loads((REPOSITORY / "benchmarks" / "results" / "convert_memory.json").read_text()))


def assert_within_bound(report):
    assert len(report["results"]) == 2
    for result in report["results"]:
        assert result["checkpoint_bytes"] > 1.9e9
        assert result["peak_bytes"] < result["largest_shard_bytes"] + 300e6


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
