"""Fixtures of the tests of exports: a tiny checkpoint, and an export that runs no snippet."""

import shutil
from pathlib import Path

import pytest
from command_line import save_checkpoint

from wedlm.hub_card import export
from wedlm.hub_card.checkpoint import read_checkpoint


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A tiny random checkpoint, which no test changes."""
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="session")
def read(saved):
    return read_checkpoint("model", saved)


@pytest.fixture
def model(tmp_path, saved):
    """A copy of the tiny checkpoint."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the snippet's run, and lists the arguments that it would have had."""
    ran = []
    monkeypatch.setattr(export, "run_snippet", lambda *arguments: ran.append(arguments))
    return ran
