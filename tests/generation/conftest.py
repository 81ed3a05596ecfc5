"""Decoding does not depend on how a layer is made, so one of the two golden checkpoints does."""

import pytest
from helpers import CHECKPOINTS


@pytest.fixture
def checkpoint():
    return CHECKPOINTS / "q3"
