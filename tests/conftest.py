"""Fixtures, the three tiers of the suite, and its time limits."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test asks the network
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is: the tests run side by side, and so do processes they start

import pytest
from helpers import CHECKPOINTS, load
from hypothesis import Phase, settings
from tiers import LIMITS, mark_all_but_few
from transformers import logging

settings.register_profile("short", max_examples=33)  # `make test`; `make test-all` draws 100, the default
# A mutant's test draws the same examples each time, and need not look for the smallest one that fails.
settings.register_profile(
    "mutants", max_examples=33, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
logging.disable_progress_bar()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items):
    mark_all_but_few(items)
    for item in items:
        for tier, seconds in LIMITS.items():
            if item.get_closest_marker(tier) and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(autouse=True)
def usual_verbosity():
    """Commands silence transformers for the whole process, also those that a fixture of a module runs."""
    yield
    logging.set_verbosity_warning()


@pytest.fixture(params=["q25", "q3"])
def checkpoint(request):
    return CHECKPOINTS / request.param


@pytest.fixture
def model(checkpoint):
    return load(checkpoint)
