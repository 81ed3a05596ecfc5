"""Errors of other libraries, of full disks and of ended processes as errors of training."""

import errno
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from safetensors import SafetensorError
from torch.distributed import DistNetworkError
from training_runs import CONFIGS, TOY, words

from wedlm.training.run_errors import TrainingError, as_training_errors, ended_process_errors, full_disk_errors


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError, RuntimeError])
def test_errors_of_others_become_one_line_of_the_same_words(kind):
    with pytest.raises(TrainingError, match="^a sentence of two lines$"), as_training_errors():
        raise kind("a sentence\n  of two lines")


# --- Full disks ---


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("I/O error: No space left on device"),
        RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, error):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(TrainingError, match=r"^The disk of output_dir=.* is full, .* resume_from_checkpoint=true"):
        with full_disk_errors(SimpleNamespace(output_dir=str(tmp_path))):
            raise error


def test_other_errors_of_writing_stay_as_they_are(tmp_path):
    for error in (RuntimeError("PytorchStreamWriter failed"), OSError(errno.EACCES, "Permission denied")):
        with pytest.raises(type(error)) as raised, full_disk_errors(SimpleNamespace(output_dir=str(tmp_path))):
            raise error
        assert raised.value is error


# --- Processes that end ---


SENTENCE = (
    r"Process 0 of 2 ends, because another one has ended or does not answer \(%s\); .* pass resume_from_checkpoint"
)
TWO = SimpleNamespace(world_size=2, process_index=0)


@pytest.fixture
def sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield before
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error, reason",
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:9] Connection closed by peer. See it."), ".*closed by peer"),
        (DistNetworkError("The server has closed"), "The server has closed"),
    ],
)
def test_the_error_of_a_collective(sigterm, error, reason):
    with pytest.raises(TrainingError, match=SENTENCE % reason):
        with ended_process_errors(TWO):
            raise error


def test_the_signal_of_a_launcher(sigterm):
    with pytest.raises(TrainingError, match=SENTENCE % "the launcher has sent SIGTERM"):
        with ended_process_errors(TWO):
            signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one does not keep the sentence from being printed


def test_other_errors_and_runs_stay_as_they_are(sigterm):
    with ended_process_errors(TWO):
        pass
    assert signal.getsignal(signal.SIGTERM) == sigterm
    with pytest.raises(RuntimeError, match="^shapes do not match$"), ended_process_errors(TWO):
        raise RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="gloo"), ended_process_errors(SimpleNamespace(world_size=1)):
        raise RuntimeError("gloo")


@pytest.mark.full
def test_a_rank_is_killed(place, tmp_path):
    out = tmp_path / "out"
    fields = {"model": place / "model", "train_data": place / "chats.jsonl", "output_dir": out, **TOY}
    fields |= {"max_steps": 10_000, "save_steps": 1, "bf16": False}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "wedlm"]
    command += ["train", CONFIGS / "full.yaml", *words(**fields)]
    with open(tmp_path / "printed", "w") as printed, subprocess.Popen(command, stdout=printed, stderr=printed) as run:
        try:
            while not (out / "checkpoint-2").exists():
                assert run.poll() is None, (tmp_path / "printed").read_text()
                time.sleep(0.1)
            psutil.Process(run.pid).children()[1].kill()
            run.wait(60)
        finally:
            run.terminate()  # the launcher ends its processes
    assert "Process 0 of 2 ends, because another one has ended" in (tmp_path / "printed").read_text()
