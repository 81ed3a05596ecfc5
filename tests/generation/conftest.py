"""Decoding does not depend on how a layer is made, so the short run takes one of the two golden checkpoints."""

import pytest
from helpers import CHECKPOINTS


@pytest.fixture(params=[pytest.param("q25", marks=pytest.mark.full), "q3"])
def checkpoint(request):
    return CHECKPOINTS / request.param
