import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test asks the network

import pytest
import torch
from helpers import CHECKPOINTS, load
from hypothesis import Phase, settings
from transformers import logging

# A mutant's test need not look for the smallest example that fails.
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
torch.set_num_threads(1)  # the tests run side by side
logging.disable_progress_bar()


@pytest.fixture(params=["q25", "q3"])
def checkpoint(request):
    return CHECKPOINTS / request.param


@pytest.fixture
def model(checkpoint):
    return load(checkpoint)
