"""Tool calls: parsed from the text, and forced by a grammar."""

import json
import math

import pytest
import xgrammar
from hypothesis import example, given
from hypothesis import strategies as st
from serving_client import prepared, served_model
from tiers import property_settings
from transformers.cli.serving.utils import ReasoningText, ToolCall, get_response_template

from wedlm.serving.protocol import Function
from wedlm.serving.tool_calls import QWEN3, OutputParser, forced_call

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
FORCED = CALL.replace("\n", "")


def parsed(served, text, step):
    """The text, the thoughts and the calls of an answer."""
    parser = OutputParser.from_prompt(served.tokenizer, served.model, [9])
    items = [item for begin in range(0, len(text), step) for item in parser.feed(text[begin : begin + step])]
    items += parser.finish()
    calls = [(item.name, json.loads(item.arguments)) for item in items if isinstance(item, ToolCall)]
    thoughts = "".join(item for item in items if isinstance(item, ReasoningText))
    return "".join(item for item in items if type(item) is str), thoughts, calls


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain < text", ("plain < text", "", [])),
        (CALL, ("", "", [("weather", {"city": "Köln"})])),
        (f"Let me see.\n{CALL}\n{CALL}", ("Let me see.", "", [("weather", {"city": "Köln"})] * 2)),
        (f"<think>hm</think>{CALL}", ("", "hm", [("weather", {"city": "Köln"})])),
        ("<tool_call>{broken</tool_call> and more", ("<tool_call>{broken</tool_call> and more", "", [])),
        ("<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", "", [])),
        ('<tool_call>{"name": "a"', ('<tool_call>{"name": "a"', "", [])),
    ],
)
def test_items_of_a_text(served, text, expected, step):
    assert parsed(served, text, step) == expected


@pytest.mark.parametrize(("name", "arguments"), [(3, {}), ("time", [1]), ("time", {"hour": math.nan})])
def test_a_call_without_a_name_or_an_object_stays_text(served, name, arguments):
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call> and more"
    assert parsed(served, text, 7) == (text, "", [])


MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "{", "[1]", " ", "\n", "<", ">", "x", " " * 40]


@example(text=f"{CALL}><tool_call>", step=10)
@property_settings(60)
@given(text=st.lists(st.sampled_from(MARKS), max_size=12).map("".join), step=st.integers(2, 60))
def test_it_does_not_matter_how_a_text_is_cut(served, text, step):
    assert parsed(served, text, step) == parsed(served, text, 1)


@pytest.mark.parametrize("step", [1, 10_000])
def test_blanks_do_not_wait_for_a_call(served, step):
    """The parser searches all text that it holds back again with each character."""
    parser = OutputParser.from_prompt(served.tokenizer, served.model, [9])
    items = [item for _ in range(0, 10_000, step) for item in parser.feed(" " * step)]
    assert len("".join(items)) > 9_900


@pytest.mark.parametrize("written", ["<think>", CALL])
def test_marks_in_the_prompt_are_not_the_answers(served, written):
    """The template has no mark in front of an answer."""
    parser = OutputParser.from_prompt(served.tokenizer, served.model, served.tokenizer(written)["input_ids"])
    assert parser.feed("yes") + parser.finish() == ["yes"]


def test_text_without_a_form_has_no_parser(checkpoint):
    tokenizer = served_model(checkpoint, chat_template="{{ messages }}").tokenizer
    assert OutputParser.from_prompt(tokenizer, checkpoint[1], [9]) is None


def test_a_form_of_the_tokenizer_comes_first(checkpoint):
    known = get_response_template(checkpoint[2], QWEN3)["fields"]
    thoughts = "thinking" if "thinking" in known else "reasoning_content"  # as this version of transformers calls them
    template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "assistant",
        "fields": {"content": {"content": "text"}, thoughts: {"open": "[[", "close": "]]"}},
    }
    tokenizer = served_model(checkpoint, response_template=template).tokenizer
    parser = OutputParser.from_prompt(tokenizer, checkpoint[1], [9])
    assert parser.reads_special_tokens
    items = parser.feed("[[hm]]yes") + parser.finish()
    assert "".join(item for item in items if isinstance(item, ReasoningText)) == "hm"


def grammar_of(served, **fields):
    """The grammar of the answer, which is the last logits processor."""
    (choice,) = prepared(served, **{"tools": TOOLS, **fields}).choices
    return xgrammar.GrammarMatcher(choice.logits_processor[-1].compiled_grammars[0])


def accepts(served, choice, text, **fields):
    matcher = grammar_of(served, tool_choice=choice, **fields)
    return matcher.accept_string(text) and matcher.is_completed()


def test_a_choice_forces_a_call(served):
    only_time = {"type": "function", "function": {"name": "time"}}
    time = '<tool_call>{"name": "time", "arguments": {"zone": 1}}</tool_call>'
    assert accepts(served, "required", FORCED) and accepts(served, "required", time)
    assert accepts(served, only_time, time) and not accepts(served, only_time, FORCED)
    for text in ("Hello", FORCED * 2, FORCED.replace('"Köln"', "3")):
        assert not accepts(served, "required", text)
    for choice in (None, "auto", "none"):
        assert not prepared(served, tools=TOOLS, tool_choice=choice).choices[0].logits_processor
        assert accepts(served, choice, '{"a": [1]}', response_format={"type": "json_object"})
        assert not accepts(served, choice, "[1]", response_format={"type": "json_object"})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "names no tool of tools="),
        ({"tool_choice": "required", "tools": []}, "tool_choice='required' names no tool of tools="),
        ({"tool_choice": "required", "tools": [{"function": {}}]}, "tools.0.function.name is missing; add it."),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "excludes response_format"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=false needs tool_choice='required'"),
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
        prepared(served, **{"tools": TOOLS, **fields})


def test_a_model_of_another_form_cannot_be_forced(checkpoint):
    served = served_model(checkpoint, chat_template="{{ tools }}")
    with pytest.raises(ValueError, match="whose form of calls is unknown; leave it out"):
        prepared(served, tools=TOOLS, tool_choice="required")
    assert served.grammars.process is None


def test_names_are_written_as_json():
    begin, _, end = forced_call(Function(name='a"b'))
    assert begin + "{}" + end == '<tool_call>{"name": "a\\"b", "arguments": {}}</tool_call>'
