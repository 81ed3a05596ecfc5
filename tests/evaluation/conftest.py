"""Fixtures of the tests of evaluation: the demo checkpoint, and a folder of tasks."""

import pytest
from evaluations import write_tasks
from helpers import load
from transformers import AutoTokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.fixture(scope="session")
def demo():
    """The demo checkpoint's model and tokenizer; a test that changes its generation config restores it."""
    return load(DEMO_FOLDER), AutoTokenizer.from_pretrained(DEMO_FOLDER)


@pytest.fixture
def task_folder(tmp_path):
    """A folder of tasks, to which a test may add others."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    write_tasks(folder)
    return folder
