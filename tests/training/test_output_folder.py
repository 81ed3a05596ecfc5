"""An output folder that cannot be written, or whose disk is full."""

import errno
import shutil
from collections import namedtuple

import pytest
import torch
from safetensors import SafetensorError
from training_runs import run
from transformers import AutoConfig

from wedlm import WeDLMTrainingArguments
from wedlm.checkpoints.errors import CheckpointError
from wedlm.training.errors import TrainingError
from wedlm.training.output_folder import bytes_of_checkpoint, full_disks
from wedlm.training.run_arguments import RunArguments

Usage = namedtuple("Usage", "total used free")


def test_a_folder_that_cannot_be_written_is_refused_before_the_data_are_read(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"output_dir=.*file/out cannot be written \(Not a directory: .*; choose"):
        run(place, tmp_path / "file" / "out", train_data="nowhere.jsonl")
    with pytest.raises(TrainingError, match="There is no file nowhere.jsonl"):
        run(place, tmp_path / "new" / "out", train_data="nowhere.jsonl")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("model", ["model", "qwen"])
def test_room_for_a_checkpoint(place, tmp_path, monkeypatch, model):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    with pytest.raises(
        CheckpointError, match=r"out/checkpoint needs 0.00 GB and its disk has 0.00 GB free; free some"
    ):
        run(place, tmp_path / "out", model=place / model, train_data="nowhere.jsonl")
    assert not (tmp_path / "out").exists()


def test_the_size_is_that_of_a_checkpoint(place, full_run):
    config = AutoConfig.from_pretrained(place / "model")
    checkpoint = full_run.folder / "checkpoint-2"
    weights = (checkpoint / "model.safetensors").stat().st_size
    optimizer = (checkpoint / "optimizer.pt").stat().st_size
    for save_only_model, rank, size in ((False, 0, weights + optimizer), (True, 0, weights), (False, 4, 0)):
        run_arguments = RunArguments(model=str(place / "model"), train_data=[], lora_r=rank)
        training = WeDLMTrainingArguments("out", use_cpu=True, save_only_model=save_only_model)
        assert 0.8 * size <= bytes_of_checkpoint(run_arguments, training, config) <= size


@pytest.mark.parametrize("name", ["torch", "python"])
def test_a_disk_that_gets_full_is_one_sentence(place, tmp_path, monkeypatch, name):
    failure = OSError(errno.ENOSPC, "No space left on device")
    if name == "torch":
        failure = RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed")

    def save(*args, **kwargs):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
        raise failure

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(TrainingError, match=r"^The disk of output_dir=.*out is full, .* resume_from_checkpoint=true"):
        run(place, tmp_path / "out")


@pytest.mark.parametrize(
    "error", [OSError(errno.EDQUOT, "Disk quota exceeded"), SafetensorError("I/O error: No space left on device")]
)
def test_full_disks_of_other_libraries(tmp_path, error):
    with pytest.raises(TrainingError, match="^The disk of output_dir="):
        with full_disks(WeDLMTrainingArguments(str(tmp_path), use_cpu=True)):
            raise error


def test_other_errors_stay_as_they_are(tmp_path, monkeypatch):
    training = WeDLMTrainingArguments(str(tmp_path), use_cpu=True)
    for error in (RuntimeError("PytorchStreamWriter failed"), OSError(errno.EACCES, "Permission denied")):
        with pytest.raises(type(error)) as raised, full_disks(training):
            raise error
        assert raised.value is error
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    with pytest.raises(RuntimeError, match="^another$"), full_disks(training):
        raise RuntimeError("another")
