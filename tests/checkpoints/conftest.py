"""Fixtures of the tests of checkpoints."""

import pytest
from stock_checkpoints import save_stock


@pytest.fixture
def source(tmp_path):
    save_stock(tmp_path / "source")
    return tmp_path / "source"
