import datasets
import pytest

datasets.disable_progress_bars()


@pytest.fixture
def datasets_cache(tmp_path_factory, monkeypatch):
    """An empty cache of datasets for each test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
