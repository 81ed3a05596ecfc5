"""The facts about a checkpoint, the decodings that it offers, and the notes about those that are refused or slower."""

import json

import pytest
from helpers import CHECKPOINTS
from stock_checkpoints import CLASSES, edit, save_stock

from wedlm import convert_to_wedlm
from wedlm.checkpoints.architectures import wedlm_model
from wedlm.checkpoints.facts import read_facts
from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings
from wedlm.generation.parameters import AS_IT_IS, DECODINGS


@pytest.mark.parametrize("model_type", CLASSES)
def test_the_facts_of_a_stock_checkpoint_and_of_its_conversion(tmp_path, model_type):
    (tmp_path / "source").mkdir()
    stock = save_stock(tmp_path / "source", model_type, rows=300)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    before, after = read_facts(tmp_path / "source"), read_facts(tmp_path / "wedlm")
    assert before.parameters == after.parameters == stock.num_parameters()
    assert before.bytes_on_disk() == after.bytes_on_disk() == {"float32": 4 * stock.num_parameters()}
    assert (before.model_type, after.model_type) == (model_type, "wedlm")
    assert (before.decodings, after.decodings) == (list(AS_IT_IS), list(DECODINGS))
    assert (after.mask_token, after.generation["decoding"]) == ("<|mask|>", "verified")


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"repetition_penalty": 1.05, "temperature": 0.7, "do_sample": True}, ["repetition_penalty=1.05"]),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 4}, ["no_repeat_ngram_size=3", "min_new_tokens=4"]),
        ({"num_beams": 4}, ["num_beams=4 is not offered"]),
        ({"repetition_penalty": 1.0, "do_sample": True, "top_p": 0.8, "suppress_tokens": [3]}, []),
    ],
)
def test_generation_configs_that_limit_parallel_decoding(source, tmp_path, fields, said):
    edit(source / "generation_config.json", **fields)
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert len(notes) == bool(said) and all(words in notes[0] for words in said)
    assert "temperature" not in "".join(notes)
    before, after = (
        json.loads((each / "generation_config.json").read_text()) for each in (source, tmp_path / "wedlm")
    )
    decoding = "autoregressive" if "num_beams" in fields else "verified"
    assert after == {**before, "_from_model_config": False, "decoding": decoding}


@pytest.fixture
def model():
    return wedlm_model(json.loads((CHECKPOINTS / "q3" / "config.json").read_text()), "q3")[1]


def test_questions_leave_the_model_as_it_was(model):
    model.generation_config.window_size = 5
    given, fields, config = model.generation_config, model.generation_config.to_dict(), model.config.to_dict()
    assert offered_decodings(model, {"num_beams": 4}) == ["autoregressive"]
    assert limits_of_parallel_decoding(model, {"decoding": "autoregressive"}) == []
    assert "repetition_penalty=1.5" in limits_of_parallel_decoding(model, {"repetition_penalty": 1.5})[0]
    assert model.generation_config is given
    assert (given.to_dict(), model.config.to_dict()) == (fields, config)


@pytest.mark.parametrize(
    "fields, offered", [({"max_new_tokens": "9"}, []), ({"eos_token_id": []}, list(DECODINGS))], ids=str
)
def test_fields_that_transformers_cannot_read_are_a_note(model, fields, offered):
    assert offered_decodings(model, fields) == offered
    (note,) = limits_of_parallel_decoding(model, fields)
    assert note.startswith("generate() will refuse this checkpoint until it is changed: ")
