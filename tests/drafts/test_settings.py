"""The settings of a run, and a stopped run with other settings."""

import shutil
from dataclasses import fields, replace

import pytest
from adapt_runs import write_prompts

from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS
from wedlm.drafts.check import check_settings, record_settings
from wedlm.drafts.settings import AdaptSettings

OTHERS = {
    "num_prompts": 5, "num_held_out": 5, "max_new_tokens": 5, "temperature": 0.5, "minutes": 5.0, "steps": 5,
    "rank": 5, "window_size": 5, "learning_rate": 0.5, "max_length": 50, "batch_size": 5, "seed": 5,
    "dtype": "bfloat16", "mask_shift": False,
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """A folder with a file of weights."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 4000)
    return str(tmp_path / "model")


@pytest.fixture
def work(tmp_path):
    """The folder of a run that has begun."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.jsonl").write_text("{}")
    return tmp_path / "work"


def test_a_stopped_run_goes_on_with_its_own_settings_only(model, work, tmp_path):
    settings, file = AdaptSettings(model), write_prompts(tmp_path / "prompts.jsonl")
    shutil.copyfile(file, tmp_path / ADAPTER_WEIGHTS)
    check_settings(settings, work)  # nothing is recorded
    record_settings(settings, work)
    check_settings(replace(settings, device="cpu", measure_also=file), work)
    others = {name: (other, "") for name, other in OTHERS.items()}
    others |= {"prompts": (file, "another "), "answers": (file, "another "), "start_from": (tmp_path, "another ")}
    assert {"model", "device", "measure_also", *others} == {field.name for field in fields(AdaptSettings)}
    for name, (other, kind) in others.items():
        sentence = f"holds a run with {kind}--{name.replace('_', '-')}.*; give its options to go on"
        with pytest.raises(ValueError, match=sentence):
            check_settings(replace(settings, **{name: other}), work)


def test_a_run_whose_first_check_failed_may_change(model, tmp_path):
    """Only the settings are there, and no work."""
    record_settings(AdaptSettings(model), tmp_path / "new")
    check_settings(AdaptSettings(model, rank=5), tmp_path / "new")


def test_a_file_that_changes_is_noticed(model, work, tmp_path):
    file = write_prompts(tmp_path / "prompts.jsonl")
    record_settings(AdaptSettings(model, prompts=file), work)
    check_settings(AdaptSettings(model, prompts=file), work)
    write_prompts(file, 3)
    with pytest.raises(ValueError, match="another --prompts, or an earlier content of it"):
        check_settings(AdaptSettings(model, prompts=file), work)


def test_other_weights_are_noticed_under_any_name(model, work, tmp_path):
    record_settings(AdaptSettings(model), work)
    check_settings(AdaptSettings(f"{model}/../model"), work)
    weights = tmp_path / "model" / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[10_000] += 1
    weights.write_bytes(changed)
    with pytest.raises(ValueError, match="another MODEL, or with other weights of it"):
        check_settings(AdaptSettings(model), work)


def test_a_file_that_is_not_there_is_refused(model, work, tmp_path):
    with pytest.raises(ValueError, match=r"typo.jsonl cannot be read \(No such file or directory\); give a file that"):
        check_settings(AdaptSettings(model, prompts=tmp_path / "typo.jsonl"), work)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"minutes": float("nan")}, "--minutes nan is not a number above 0"),
        ({"temperature": -1}, "--temperature -1 is negative or no number"),
        ({"seed": 2**32}, "--seed 4294967296 is too large"),
        ({"device": "cuda:1"}, "--device cuda:1 names one of several GPUs, .*; set CUDA_VISIBLE_DEVICES"),
        ({"window_size": 1}, "--window-size 1 is too small; pass 2 or more"),
        ({"num_held_out": 1201}, "--num-held-out 1201 is too large; pass 1200 or less"),
    ],
)
def test_settings_that_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        AdaptSettings("model", **wrong)
