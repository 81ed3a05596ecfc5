"""The sentence of a run on several processes, one of which has ended."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from torch.distributed import DistNetworkError
from training_runs import CONFIGS, TOY, words

from wedlm.training.ended_processes import ended_processes
from wedlm.training.errors import TrainingError

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
        with ended_processes(TWO):
            raise error


def test_the_signal_of_a_launcher(sigterm):
    with pytest.raises(TrainingError, match=SENTENCE % "the launcher has sent SIGTERM"):
        with ended_processes(TWO):
            signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one does not keep the sentence from being printed


def test_other_errors_and_runs_stay_as_they_are(sigterm):
    with ended_processes(TWO):
        pass
    assert signal.getsignal(signal.SIGTERM) == sigterm
    with pytest.raises(RuntimeError, match="^shapes do not match$"), ended_processes(TWO):
        raise RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="gloo"), ended_processes(SimpleNamespace(world_size=1)):
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
