import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test asks the network
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is: the tests run side by side, and so do processes they start

import pytest
from helpers import CHECKPOINTS, load
from hypothesis import Phase, settings
from transformers import logging

# A mutant's test need not look for the smallest example that fails.
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
logging.disable_progress_bar()


@pytest.fixture(params=["q25", "q3"])
def checkpoint(request):
    return CHECKPOINTS / request.param


@pytest.fixture
def model(checkpoint):
    return load(checkpoint)
