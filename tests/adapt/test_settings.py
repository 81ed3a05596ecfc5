"""The settings of a run, and a stopped run with other settings."""

from dataclasses import fields, replace

import pytest
from adapt_runs import write_prompts

from wedlm.adapt.settings import AdaptSettings, Places, check_settings, record_settings
from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS

OTHERS = {
    "model": "another", "num_prompts": 5, "num_held_out": 5, "max_new_tokens": 5, "temperature": 0.5, "minutes": 5.0,
    "steps": 5, "rank": 5, "window_size": 5, "learning_rate": 0.5, "max_length": 50, "batch_size": 5, "seed": 5,
    "dtype": "bfloat16",
}  # fmt: skip
FILES = ("prompts", "answers", "measure_also", "start_from")


@pytest.mark.parametrize("name", [field.name for field in fields(AdaptSettings)])
def test_a_stopped_run_goes_on_with_its_own_settings_only(name, tmp_path):
    settings = AdaptSettings("model")
    check_settings(settings, tmp_path)  # nothing is there
    record_settings(settings, tmp_path)
    check_settings(settings, tmp_path)
    if name == "device":
        check_settings(replace(settings, device="cpu"), tmp_path)
        return
    if name in FILES:
        file = write_prompts(tmp_path / (ADAPTER_WEIGHTS if name == "start_from" else "prompts.jsonl"))
        other = replace(settings, **{name: tmp_path if name == "start_from" else file})
    else:
        other = replace(settings, **{name: OTHERS[name]})
    with pytest.raises(ValueError, match=f"holds a run with --{name.replace('_', '-')} .*; give its options to go on"):
        check_settings(other, tmp_path)


def test_a_file_that_changes_is_noticed(tmp_path):
    file = write_prompts(tmp_path / "prompts.jsonl")
    record_settings(AdaptSettings("model", prompts=file), tmp_path)
    check_settings(AdaptSettings("model", prompts=file), tmp_path)
    write_prompts(file, 3)
    with pytest.raises(ValueError, match="holds a run with --prompts"):
        check_settings(AdaptSettings("model", prompts=file), tmp_path)


def test_a_damaged_record_is_refused(tmp_path):
    for content in ("{", "[]"):
        (tmp_path / "settings.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="cannot be read .*; remove .* to start anew"):
            check_settings(AdaptSettings("model"), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"minutes": 0}, "--minutes 0 is not a number above 0"),
        ({"minutes": float("nan")}, "--minutes nan is not a number above 0"),
        ({"learning_rate": float("inf")}, "--learning-rate inf is not a number above 0"),
        ({"temperature": -1}, "--temperature -1 is negative or no number"),
        ({"steps": 0}, "--steps 0 is too small; pass 1 or more"),
        ({"window_size": 1}, "--window-size 1 is too small; pass 2 or more"),
        ({"window_size": 33}, "--window-size 33 is too large; pass 32 or less"),
        ({"num_held_out": 0}, "--num-held-out 0 is too small"),
        ({"num_held_out": 1201}, "--num-held-out 1201 is too large; pass 1200 or less"),
        ({"num_prompts": 12001}, "--num-prompts 12001 is too large; pass 12000 or less"),
    ],
)
def test_settings_that_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        AdaptSettings("model", **wrong)


def test_the_folders_lie_beside_each_other(tmp_path):
    places = Places(tmp_path / "drafts")
    assert (places.base, places.work) == (tmp_path / "drafts.base", tmp_path / "drafts.work")
