"""Calls of tools: told from the text, and forced by a grammar."""

import copy
import json
import math

import pytest
import torch
import xgrammar
from hypothesis import example, given
from hypothesis import strategies as st
from serving_client import MESSAGES
from tiers import property_settings
from transformers.cli.serving.utils import ReasoningText, ToolCall, get_response_template

from wedlm.serving import tool_calls
from wedlm.serving.asked import ChatRoute, Served, read_request
from wedlm.serving.grammars import Grammars
from wedlm.serving.tool_calls import OF_THAT_FORM, AnswerParser, call_of, grammar_of_choice

TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for message in messages %}{{ message.content }}{% endfor %}{# <tool_call></tool_call> #}"""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
FORCED = CALL.replace("\n", "")


@pytest.fixture(scope="module")
def served(checkpoint):
    tokenizer = copy.copy(checkpoint[2])
    tokenizer.chat_template = TEMPLATE
    served = Served("tiny", checkpoint[1], tokenizer, 0)
    yield served
    served.grammars.close()


def told(served, text, step):
    """The text, the thoughts and the calls of an answer."""
    parser = AnswerParser.of(served.tokenizer, served.model, [9])
    items = [item for begin in range(0, len(text), step) for item in parser.feed(text[begin : begin + step])]
    items += parser.finish()
    calls = [(item.name, json.loads(item.arguments)) for item in items if isinstance(item, ToolCall)]
    thoughts = "".join(item for item in items if isinstance(item, ReasoningText))
    return "".join(item for item in items if type(item) is str), thoughts, calls


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain < text", ("plain < text", "", [])),
        (CALL, ("", "", [("weather", {"city": "Köln"})])),
        (f"Let me see.\n{CALL}\n{CALL}", ("Let me see.", "", [("weather", {"city": "Köln"})] * 2)),
        (f"<think>hm</think>{CALL}", ("", "hm", [("weather", {"city": "Köln"})])),
        ("<tool_call>{broken</tool_call> and more", ("<tool_call>{broken</tool_call> and more", "", [])),
        ('<tool_call>{"nam": 1}</tool_call>', ('<tool_call>{"nam": 1}</tool_call>', "", [])),
        ("<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", "", [])),
        (f"{CALL}<tool_call>{{", ("<tool_call>{", "", [("weather", {"city": "Köln"})])),
        ("a < <tool_call>{broken</tool_call>", ("a < <tool_call>{broken</tool_call>", "", [])),
        ('<tool_call>{"name": "a"', ('<tool_call>{"name": "a"', "", [])),
    ],
    ids=[
        "text",
        "call",
        "text and calls",
        "thought",
        "broken",
        "no name",
        "no object",
        "unfinished",
        "a <",
        "cut",
    ],
)
def test_what_is_told(served, text, expected, step):
    assert told(served, text, step) == expected


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [(3, {}), ("time", [1]), ("time", 1), ("time", "x"), ("time", None), ("time", {"hour": math.nan})],
)
def test_a_call_without_a_name_or_an_object_stays_text(served, name, arguments, step):
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call> and more"
    assert told(served, text, step) == (text, "", [])


MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "{", "[1]", " ", "\n", "<", ">", "x", " " * 40]


@example(text=f"{CALL}><tool_call>", step=10)
@property_settings(60)
@given(text=st.lists(st.sampled_from(MARKS), max_size=12).map("".join), step=st.integers(2, 60))
def test_it_does_not_matter_how_a_text_is_cut(served, text, step):
    assert told(served, text, step) == told(served, text, 1)


@property_settings(60)
@given(text=st.lists(st.sampled_from(["<tool_call>", "</tool_call>", *"{<> x\n"]), max_size=12).map("".join))
def test_text_without_a_call_loses_nothing(served, text):
    assert told(served, text, 3) == (text, "", [])


@pytest.mark.parametrize("step", [1, 10_000])
def test_blanks_do_not_wait_for_a_call(served, step):
    """The parser searches all text that it holds back again with each character."""
    parser = AnswerParser.of(served.tokenizer, served.model, [9])
    items = [item for _ in range(0, 10_000, step) for item in parser.feed(" " * step)]
    assert len("".join(items)) > 9_900


def test_a_long_text_is_read_in_few_pieces(served, monkeypatch):
    pieces = []

    class CountingParser(tool_calls.ResponseParser):
        def feed(self, text):
            pieces.append(text)
            return super().feed(text)

    monkeypatch.setattr(tool_calls, "ResponseParser", CountingParser)
    text = "A text > a mark. " * 1000 + CALL
    assert told(served, text, len(text))[2] and len(pieces) < 1010


@pytest.mark.parametrize("written", ["<think>", "<tool_call>{broken</tool_call>", CALL])
def test_marks_in_the_prompt_are_not_the_answers(served, written):
    """The template has no mark in front of an answer."""
    parser = AnswerParser.of(served.tokenizer, served.model, served.tokenizer(written)["input_ids"])
    assert parser.feed("yes") + parser.finish() == ["yes"]


def test_text_without_a_form_has_no_parser(checkpoint):
    tokenizer = copy.copy(checkpoint[2])
    tokenizer.chat_template = "{{ messages }}"
    assert AnswerParser.of(tokenizer, checkpoint[1], [9]) is None


def test_a_form_of_the_tokenizer_comes_first(checkpoint):
    tokenizer = copy.copy(checkpoint[2])
    known = get_response_template(tokenizer, OF_THAT_FORM)["fields"]
    thoughts = "thinking" if "thinking" in known else "reasoning_content"  # as this version of transformers calls them
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "assistant",
        "fields": {"content": {"content": "text"}, thoughts: {"open": "[[", "close": "]]"}},
    }
    parser = AnswerParser.of(tokenizer, checkpoint[1], [9])
    assert parser.reads_special_tokens
    items = parser.feed("[[hm]]yes") + parser.finish()
    assert "".join(item for item in items if isinstance(item, ReasoningText)) == "hm"


def asked(served, **fields):
    return read_request(served, ChatRoute, {"messages": MESSAGES, "tools": TOOLS, **fields})


def accepts(grammar, text):
    matcher = xgrammar.GrammarMatcher(grammar.compiled)
    return matcher.accept_string(text) and matcher.is_completed()


def test_a_choice_forces_a_call(served):
    grammars, tokenizer = served.grammars, served.tokenizer
    required = grammar_of_choice({"tool_choice": "required"}, TOOLS, tokenizer, grammars)
    named = {"tool_choice": {"type": "function", "function": {"name": "time"}}}
    only_time = grammar_of_choice(named, TOOLS, tokenizer, grammars)
    time = '<tool_call>{"name": "time", "arguments": {"zone": 1}}</tool_call>'
    assert accepts(required, FORCED) and accepts(required, time) and accepts(only_time, time)
    assert not accepts(only_time, FORCED) and not accepts(required, "Hello") and not accepts(required, FORCED * 2)
    assert not accepts(required, FORCED.replace('"Köln"', "3"))
    for choice in (None, "auto", "none"):
        assert grammar_of_choice({"tool_choice": choice}, TOOLS, tokenizer, grammars) is None


@pytest.mark.parametrize("limits", [{"maxLength": 50}, {"pattern": "^[^x]*$"}], ids=["maxLength", "pattern"])
def test_a_forced_call_holds_no_control_characters(served, limits):
    """JSON must not hold one in a string."""
    city = {"type": "object", "properties": {"city": {"type": "string"} | limits}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "a", "parameters": city}}]
    grammar = grammar_of_choice({"tool_choice": "required"}, tools, served.tokenizer, served.grammars)
    matcher = xgrammar.GrammarMatcher(grammar.compiled)
    assert matcher.accept_string('<tool_call>{"name": "a", "arguments": {"city": "K')
    bitmask = xgrammar.allocate_token_bitmask(1, served.model.config.vocab_size)
    matcher.fill_next_token_bitmask(bitmask)
    scores = torch.zeros(1, served.model.config.vocab_size)
    xgrammar.apply_token_bitmask_inplace(scores, bitmask)
    allowed = [served.tokenizer.decode([token]) for token in (scores[0] == 0).nonzero()[:, 0].tolist()]
    assert "z" in allowed and not any(character < " " for text in allowed for character in text)


def test_a_forced_call_comes_back_as_a_call(served):
    """With the model's own draws, whatever they are."""
    city = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Köln"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": city, "strict": True}} for name in "ab"]
    request = asked(served, tools=tools, tool_choice="required", max_tokens=300)
    answer, (processors,) = request.answers[0], request.processors
    ids = served.model.generate(
        served.tokenizer("the cat", return_tensors="pt")["input_ids"],
        logits_processor=processors, do_sample=True, suppress_tokens=None, max_new_tokens=300, decoding="verified",
    )  # fmt: skip
    text = served.tokenizer.decode(ids[0], skip_special_tokens=True).removeprefix("the cat")
    _, _, calls = told(served, text, 1000)
    assert calls in [[(name, {"city": city})] for name in "ab" for city in ("Bonn", "Köln")]
    assert answer.parser is not None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tool_choice": "all"}, "tool_choice='all' is neither 'auto', 'none', 'required' nor"),
        ({"tool_choice": {"type": "function"}}, "is neither 'auto'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "names no tool of tools="),
        ({"tool_choice": "required", "tools": []}, "tool_choice='required' names no tool of tools="),
        (
            {"tool_choice": "required", "tools": [{"function": {}}]},
            "tools holds .* which is not an object such as",
        ),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "excludes response_format"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=False needs tool_choice='required'"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]},
            "strict=true of a tool needs tool_choice",
        ),
        (
            {"tool_choice": "required", "tools": [{"function": {"name": "a", "parameters": {"type": "x"}}}]},
            "tools cannot be compiled",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(served, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        asked(served, **fields)


def test_a_model_of_another_form_cannot_be_forced(checkpoint):
    tokenizer = copy.copy(checkpoint[2])
    tokenizer.chat_template = "{{ tools }}"
    grammars = Grammars(tokenizer, 384)
    with pytest.raises(ValueError, match="whose form of calls is unknown; leave it out"):
        grammar_of_choice({"tool_choice": "required"}, TOOLS, tokenizer, grammars)
    assert grammars.process is None


def test_names_are_written_as_json():
    begin, _, end = call_of({"name": 'a"b'})
    assert begin + "{}" + end == '<tool_call>{"name": "a\\"b", "arguments": {}}</tool_call>'
