"""Grammars of JSON schemas: what they allow, and which schemas are refused."""

import datetime
import json
import sys
from typing import Annotated, Literal

import pydantic
import pytest
import torch
import xgrammar
from serving_client import generated
from tiny_tokenizer import END, MASK, SPECIAL

from wedlm.serving import grammars as grammars_file
from wedlm.serving.grammars import (
    ANY_OBJECT,
    CACHED,
    SCHEMA_CHARACTERS,
    SCHEMA_DEPTH,
    Grammars,
    Schema,
    grammar_processor,
)

VOCAB_SIZE = 384  # more than the tokenizer has
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,4}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"enum": [True, None, "<|mask|>"]},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(checkpoint):
    grammars = Grammars(checkpoint[2], VOCAB_SIZE)
    yield grammars
    grammars.close()


def compiled(schema, grammars, strict=False):
    return grammars.compiled("schema", (Schema.from_request("schema", schema, strict),))


def allows(schema, grammars, value, **strict):
    text = value if isinstance(value, str) else json.dumps(value)
    matcher = xgrammar.GrammarMatcher(compiled(schema, grammars, **strict))
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize("decoding", ["verified", "streaming", "blockwise"])
def test_an_answer_satisfies_the_schema(checkpoint, served, decoding):
    for seed in range(2):
        processor = grammar_processor(compiled(SCHEMA, served.grammars, strict=True))
        _, ids, text = generated(
            checkpoint, decoding=decoding, logits_processor=[processor], suppress_tokens=None, max_new_tokens=120,
            do_sample=True, seed=seed,
        )  # fmt: skip
        value = json.loads(text)
        assert text == json.dumps(value) and list(value) == ["name", "age", "ok"]
        assert 0 <= value["age"] <= 99 and 1 <= len(value["name"]) <= 4 and value["ok"] in (True, None, "<|mask|>")
        assert MASK not in ids and ids[-1] == END


def test_any_object_is_json(grammars):
    any_object = json.loads(ANY_OBJECT.text)
    for value in ({}, {"a": [1, {"b": None}], "c": "é\n"}, {"a": {"b": {"c": -1.5e3}}}):
        assert allows(any_object, grammars, value)
    for text in ("[1]", "1", '{"a": 1', '{"a":  1}', '{"a": 1}\n', "{a: 1}", '{"a": "\n"}'):
        assert not allows(any_object, grammars, text)


def test_only_a_strict_schema_forbids_what_it_does_not_name(grammars):
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    for is_strict in (None, False, True):
        assert allows(schema, grammars, {"a": []}, strict=is_strict)
        assert allows(schema, grammars, {"a": [1], "b": 2}, strict=is_strict) == (not is_strict)


@pytest.mark.parametrize("before", ['{"a": "the cat', "{"], ids=["in a string", "in an object"])
@pytest.mark.parametrize("limits", [{}, {"maxLength": 50}, {"pattern": "^[^x]*$"}], ids=str)
def test_neither_special_tokens_nor_control_characters_are_allowed(checkpoint, grammars, before, limits):
    tokenizer = checkpoint[2]
    schema = {"type": "object", "properties": {"a": {"type": "string"} | limits}, "required": ["a"]}
    matcher = xgrammar.GrammarMatcher(compiled(schema, grammars))
    assert matcher.accept_string(before)
    bitmask = xgrammar.allocate_token_bitmask(1, VOCAB_SIZE)
    matcher.fill_next_token_bitmask(bitmask)
    scores = torch.zeros(1, VOCAB_SIZE)
    xgrammar.apply_token_bitmask_inplace(scores, bitmask)
    allowed = (scores[0] == 0).nonzero()[:, 0].tolist()
    assert allowed and not {*allowed} & {*range(len(SPECIAL)), *range(len(tokenizer), VOCAB_SIZE)}
    assert not any(character < " " for token in allowed for character in tokenizer.decode([token]))


def test_grammars_are_compiled_once_and_not_all_are_kept(grammars):
    first, second = (compiled({"const": number}, grammars) for number in range(2))
    assert compiled({"const": 0}, grammars) is first
    for number in range(2, CACHED + 1):
        compiled({"const": number}, grammars)
    assert grammars.cached.cache_info().currsize == CACHED and compiled({"const": 0}, grammars) is first
    assert compiled({"const": 1}, grammars) is not second  # the one used longest ago


INVALID = [
    ({"type": "strange"}, 'cannot be compiled .Unsupported type "strange".; correct'),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum greater than maximum"),
    ({"$ref": "#"}, "allows no text"),
    ({"items": {"$ref": "http://example.com"}}, "leads out of the schema"),
    ({"properties": {"not": {"anyOf": [{"not": {}}]}}}, "keyword 'not', which this server cannot"),
    ({"$defs": {"a": {"allOf": [{}, {}]}}}, "'allOf' of several"),
    ({"type": "string", "pattern": "(?=a)b"}, "looks ahead"),
    ({"$ref": "#/$defs/a", "maxLength": 2}, "'maxLength' beside '.ref'"),
    ({"type": "string", "anyOf": [{"minLength": 1}]}, "'type' beside 'anyOf'"),
    ({"enum": ["a"], "maxLength": 0}, "'maxLength' beside 'enum'"),
    ({"type": "string", "pattern": "a", "maxLength": 2}, "beside 'pattern'"),
    ({"properties": {"a": {}}, "patternProperties": {}}, "beside 'properties'"),
    ({"items": {"maxLength": 1}}, "'maxLength' without 'type'"),
    ({"type": "object", "required": ["a"]}, "requires 'a', which is not under"),
    ({"properties": {}, "unevaluatedProperties": False}, "unevaluatedProp"),
    ({"const": "\ud800"}, "cannot be compiled"),
]


def test_what_is_invalid_is_refused_in_a_sentence(grammars):
    for schema, sentence in INVALID:
        with pytest.raises(ValueError, match=sentence) as error:
            compiled(schema, grammars)
        assert "\n" not in str(error.value) and str(error.value).endswith(".") and "/cpp/" not in str(error.value)


def test_a_schema_as_pydantic_writes_it(grammars):
    class Animal(pydantic.BaseModel):
        """A description."""

        kind: Literal["cat", "dog"] = pydantic.Field(description="which")
        age: Annotated[int, pydantic.Field(ge=0)] | None = None
        place: tuple[float, float]
        marks: dict[str, Annotated[str, pydantic.Field(max_length=2)]]
        born: datetime.date

    cat = {"kind": "cat", "age": None, "place": [1.0, 2.0], "marks": {"a": "b"}, "born": "2026-01-31"}
    schema = pydantic.TypeAdapter(list[Animal]).json_schema()
    assert allows(schema, grammars, [cat, cat])
    for other in ({"age": -1}, {"place": [1.0]}, {"marks": {"a": "bcd"}}, {"born": "today"}, {"kind": "fox"}):
        assert not allows(schema, grammars, [cat | other])


def test_a_property_may_have_the_name_of_a_keyword(grammars):
    assert allows({"type": "object", "properties": {"not": {"const": 1}}}, grammars, {"not": 1})


def test_schemas_have_a_size(grammars):
    def nested(depth):
        return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "string"}

    assert compiled(nested(SCHEMA_DEPTH - 2), grammars)
    with pytest.raises(ValueError, match=f"nested deeper than {SCHEMA_DEPTH} levels"):
        compiled(nested(SCHEMA_DEPTH), grammars)
    with pytest.raises(ValueError, match=f"characters, more than {SCHEMA_CHARACTERS}"):
        compiled({"const": "x" * SCHEMA_CHARACTERS}, grammars)


@pytest.mark.full
@pytest.mark.parametrize(
    "schema, seconds, sentence",
    [
        ({"properties": {f"a{i}": {"type": "string", "maxLength": 9999 - i} for i in range(500)}}, 1, "takes longer"),
        ({"anyOf": [{"type": "string", "minLength": i, "maxLength": 200 + i} for i in range(40)]}, 60, "memory"),
        ({"anyOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(200)]}, 60, "becomes too large"),
    ],
    ids=["time", "memory", "size"],
)
def test_hostile_schemas_are_refused_in_time(grammars, monkeypatch, schema, seconds, sentence):
    monkeypatch.setattr(grammars_file, "COMPILE_SECONDS", seconds)
    with pytest.raises(ValueError, match=sentence):
        compiled(schema, grammars)
    assert allows({"const": seconds}, grammars, seconds)  # the next one is compiled


@pytest.mark.full
def test_a_process_that_has_died_is_replaced(grammars):
    compiled({"const": -1}, grammars)
    grammars.process.process.kill()
    grammars.process.process.wait()
    assert allows({"const": -2}, grammars, -2)


def test_without_xgrammar_a_sentence_says_how_to_get_it(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ValueError, match=r"^schema needs xgrammar, .* pip install -e \"\.\[grammar\]\"\.$"):
        compiled({}, Grammars(checkpoint[2], VOCAB_SIZE))
