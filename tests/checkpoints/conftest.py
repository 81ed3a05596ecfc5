"""Fixtures of the tests of checkpoints."""

import pytest
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from stock_checkpoints import save_stock


@pytest.fixture(autouse=True)
def no_bars():
    disable_progress_bars()
    yield
    enable_progress_bars()


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    save_stock(tmp_path / "source")
    return tmp_path / "source"
