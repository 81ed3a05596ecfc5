"""Fixtures of the tests of commands."""

import json
import signal

import pytest
from command_line import save_checkpoint

from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.answering import AnswerStreamer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return load_checkpoint(checkpoint)


@pytest.fixture
def ctrl_c_at_first_text(monkeypatch):
    """Sends SIGINT to this process when the first text is shown; the value is the list of texts that were shown."""
    shown, show = [], AnswerStreamer.on_finalized_text

    def show_and_strike(self, text, stream_end=False):
        show(self, text, stream_end)
        shown.append(text)
        if len(shown) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(AnswerStreamer, "on_finalized_text", show_and_strike)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    yield shown
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A checkpoint whose text only the limit ends; it has spaces, at which streamers write."""
    folder = save_checkpoint(tmp_path_factory.mktemp("endless") / "model")
    for name, changes in {"generation_config.json": {}, "config.json": {"max_position_embeddings": 10**6}}.items():
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, "eos_token_id": None, **changes}))
    return folder
