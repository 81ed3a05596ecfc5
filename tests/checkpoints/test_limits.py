"""The decodings that a checkpoint offers, and the notes about those that are refused or slower."""

import json

import pytest
from helpers import CHECKPOINTS
from stock_checkpoints import edit

from wedlm import convert_to_wedlm
from wedlm.checkpoints.architectures import wedlm_model
from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings
from wedlm.generation.parameters import DECODINGS


@pytest.mark.parametrize(
    "fields, said",
    [
        (
            {"repetition_penalty": 1.05, "temperature": 0.7, "do_sample": True, "top_k": 20},
            ["repetition_penalty=1.05"],
        ),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 4}, ["no_repeat_ngram_size=3", "min_new_tokens=4"]),
        ({"num_beams": 4}, ["num_beams=4 is not offered"]),
        ({"repetition_penalty": 1.0, "do_sample": True, "top_p": 0.8, "suppress_tokens": [3]}, []),
    ],
)
def test_generation_configs_that_limit_parallel_decoding(source, tmp_path, fields, said):
    edit(source / "generation_config.json", **fields)
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert len(notes) == bool(said) and all(words in notes[0] for words in said)
    assert not any("temperature" in note or "top_k" in note for note in notes)
    before, after = (
        json.loads((folder / "generation_config.json").read_text()) for folder in (source, tmp_path / "wedlm")
    )
    decoding = "autoregressive" if "num_beams" in fields else "verified"
    assert after == {**before, "_from_model_config": False, "decoding": decoding}


def test_questions_leave_the_model_as_it_was():
    """No generation_config that is asked about becomes the model's own, whatever the answer."""
    _, model = wedlm_model(json.loads((CHECKPOINTS / "q3" / "config.json").read_text()), "q3")
    model.generation_config.window_size = 5
    given, fields, config = model.generation_config, model.generation_config.to_dict(), model.config.to_dict()
    assert offered_decodings(model, {}) == list(DECODINGS)
    assert offered_decodings(model, {"num_beams": 4}) == ["autoregressive"]
    assert limits_of_parallel_decoding(model, {}) == []
    assert "num_beams=4" in limits_of_parallel_decoding(model, {"num_beams": 4})[0]
    assert "repetition_penalty=1.5" in limits_of_parallel_decoding(model, {"repetition_penalty": 1.5})[0]
    assert model.generation_config is given
    assert (given.to_dict(), model.config.to_dict()) == (fields, config)


def test_a_decoding_of_the_checkpoint_is_no_processor():
    _, model = wedlm_model(json.loads((CHECKPOINTS / "q3" / "config.json").read_text()), "q3")
    assert limits_of_parallel_decoding(model, {"decoding": "autoregressive"}) == []


@pytest.mark.parametrize(
    "fields, offered",
    [
        ({"max_new_tokens": "9"}, []),
        ({"early_stopping": {}}, []),
        ({"watermarking_config": 1}, []),
        ({"eos_token_id": []}, list(DECODINGS)),
    ],
    ids=str,
)
def test_fields_that_transformers_cannot_read_are_a_note(fields, offered):
    _, model = wedlm_model(json.loads((CHECKPOINTS / "q3" / "config.json").read_text()), "q3")
    assert offered_decodings(model, fields) == offered
    (note,) = limits_of_parallel_decoding(model, fields)
    assert note.startswith("generate() will refuse this checkpoint until it is changed: ")
