"""Folders and names on the Hub."""

import pytest
from helpers import put_into_hub_cache
from stock_checkpoints import INDEX, edit, files_of

from wedlm import convert_to_wedlm
from wedlm.checkpoints import resolve
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.resolve import checkpoint_folder, read_config, wedlm_folder


@pytest.fixture
def hub(source, tmp_path, monkeypatch):
    """The Hub's cache with `source` in it, as links into another folder."""
    put_into_hub_cache(source, tmp_path / "hub", "someone/qwen")
    (snapshot,) = (tmp_path / "hub").glob("*/snapshots/*")
    blobs = tmp_path / "hub" / "models--someone--qwen" / "blobs"
    blobs.mkdir()
    for i, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(i))
        path.symlink_to(blobs / str(i))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


@pytest.fixture
def requested(monkeypatch):
    """The revision and the patterns of each download."""
    requested, download = [], resolve.snapshot_download

    def record(name, revision, allow_patterns):
        requested.append((revision, allow_patterns))
        return download(name, revision=revision, allow_patterns=allow_patterns)

    monkeypatch.setattr(resolve, "snapshot_download", record)
    return requested


def test_a_name_without_an_owner_is_looked_for_on_the_hub(source, tmp_path, monkeypatch):
    edit(source / "config.json", model_type="gpt2")
    put_into_hub_cache(source, tmp_path / "hub", "gpt2")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(CheckpointError, match="gpt2 is of model_type 'gpt2'; supported is"):
        convert_to_wedlm("gpt2", tmp_path / "wedlm")


def test_a_name_on_the_hub(hub, source, tmp_path, requested):
    """The weights are downloaded once the config is known to fit, and only those that the index lists."""
    convert_to_wedlm("someone/qwen", tmp_path / "wedlm")
    convert_to_wedlm(source, tmp_path / "expected")
    assert files_of(tmp_path / "wedlm") == files_of(tmp_path / "expected")
    assert not any(path.is_symlink() for path in (tmp_path / "wedlm").iterdir())
    (first, small), (second, all_files) = requested
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert (first, second) == (None, hub.name) and small == [name for name in all_files if name not in shards]
    assert {name for name in all_files if "safetensors" in name} == {INDEX, *shards}
    assert not [name for name in all_files if name.endswith((".bin", ".py"))]
    edit(hub / "config.json", model_type="mixtral")
    with pytest.raises(CheckpointError, match="'mixtral'"):
        convert_to_wedlm("someone/qwen", tmp_path / "other")
    assert len(requested) == 3


def test_a_check_leaves_the_weights_on_the_hub(hub, requested):
    with pytest.raises(CheckpointError, match="someone/qwen is of model_type 'qwen3', and this needs WeDLM"):
        wedlm_folder("someone/qwen", with_weights=True)
    edit(hub / "config.json", model_type="wedlm")
    for with_weights, num_files in ((False, 0), (True, 3)):
        assert wedlm_folder("someone/qwen", with_weights=with_weights) == hub
        patterns = [name for _, names in requested for name in names]
        assert len([name for name in patterns if name.endswith(".safetensors")]) == num_files


# --- Refusals ---


def refusal(name):
    with pytest.raises(CheckpointError) as caught:
        read_config(name, checkpoint_folder(name, with_weights=True))
    return str(caught.value)


def test_names_that_are_refused(tmp_path):
    assert refusal(tmp_path / "nothing").startswith(f"{tmp_path / 'nothing'} does not exist; give the folder of a ")
    sentence = refusal("somebody/nothing")
    assert "somebody/nothing is not a folder here and was not downloaded before, and " in sentence
    assert "/somebody/nothing cannot be reached (" in sentence and sentence.endswith("or give a folder.")


def test_the_hub_says_no(monkeypatch):
    """Neither an OSError nor a ValueError, as timeouts of httpx."""

    def no(*arguments, **options):
        raise RuntimeError("404: no such\nrepository")

    monkeypatch.setattr(resolve, "snapshot_download", no)
    assert "(404: no such repository); correct the name, or give a folder." in refusal("somebody/nothing")
