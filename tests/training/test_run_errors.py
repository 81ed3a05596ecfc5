"""Errors of other libraries, of full disks and of ended processes as errors of training."""

import errno
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from processes import run_two_processes
from safetensors import SafetensorError
from torch.distributed import DistNetworkError
from torch.multiprocessing import ProcessExitedException
from training_runs import CONFIGS, TOY, words

from wedlm.training.run_errors import TrainingError, as_training_errors, ended_process_errors, full_disk_errors
from wedlm.training.train import train


def test_errors_of_others_become_one_line_of_the_same_words():
    for kind in (ValueError, OSError, ImportError, RuntimeError):
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
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 28323968 vs 28323860"),
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
ONE, TWO = (SimpleNamespace(world_size=size, process_index=0) for size in (1, 2))


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
        (None, "the launcher has sent SIGTERM"),
    ],
)
def test_the_end_of_another_process_is_one_sentence(sigterm, error, reason):
    with pytest.raises(TrainingError, match=SENTENCE % reason), ended_process_errors(TWO):
        if error is None:
            signal.raise_signal(signal.SIGTERM)
        raise error
    signal.raise_signal(signal.SIGTERM)  # a second one does not keep the sentence from being printed


def test_other_errors_and_runs_stay_as_they_are(sigterm):
    with ended_process_errors(TWO):
        pass
    assert signal.getsignal(signal.SIGTERM) == sigterm
    for error, run in ((RuntimeError("shapes do not match"), TWO), (RuntimeError("gloo"), ONE)):
        with pytest.raises(RuntimeError) as raised, ended_process_errors(run):
            raise error
        assert raised.value is error


def train_as_rank(arguments, out, printed):
    """The second rank kills itself as soon as there is a checkpoint."""
    if os.environ["RANK"] == "1":
        threading.Thread(target=kill_after, args=(out / "checkpoint-2",)).start()
    try:
        train(arguments)
    except TrainingError as error:
        printed.write_text(str(error))


def kill_after(checkpoint):
    while not checkpoint.exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_a_rank_is_killed(place, tmp_path):
    out = tmp_path / "out"
    fields = {"model": place / "model", "train_data": place / "chats.jsonl", "output_dir": out, **TOY}
    fields |= {"max_steps": 10_000, "save_steps": 1, "bf16": False}
    arguments = [str(CONFIGS / "full.yaml"), *words(**fields)]
    with pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL"):
        run_two_processes(train_as_rank, arguments, out, tmp_path / "printed")
    assert "Process 0 of 2 ends, because another one has ended" in (tmp_path / "printed").read_text()
