"""The text of an answer, streamed and whole: no part of a character lost, and its end at a stop string."""

import re
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_client import WITH_USAGE, chat, commits, generated, streamed
from tiers import property_settings
from tiny_tokenizer import END, MASK, make_tokenizer
from transformers import StopStringCriteria

from wedlm.serving import detokenizer as detokenizer_file
from wedlm.serving.detokenizer import Detokenizer, StopStrings, before_possible_stop, before_stop

TOKENIZER = make_tokenizer()
LETTERS = [token for text, token in TOKENIZER.get_vocab().items() if re.fullmatch("[a-z<|]+", text)]


def test_a_stream_tells_whole_commits(checkpoint, client):
    """A reader that is late gets several at once."""
    text = generated(checkpoint)[2]
    texts, reason, usage = streamed(chat(client, **WITH_USAGE))
    assert "".join(texts) == text and 1 < len(texts) < 30
    committed = commits(checkpoint)
    ends = {len("".join(committed[:number])) for number in range(len(committed) + 1)}
    assert {len("".join(texts[:number])) for number in range(len(texts))} <= ends
    assert (reason, usage) == ("length", chat(client).usage)


def test_a_stream_loses_no_part_of_a_character(checkpoint, client):
    """Tokens are bytes, so a text may end within a character, which the stream holds back until the end."""
    settings = {"suppress_tokens": [MASK], "decoding": "autoregressive"}
    lengths = [n for n in range(1, 25) if generated(checkpoint, max_new_tokens=n, **settings)[2].endswith("\ufffd")]
    for max_tokens in lengths[:2]:
        body = {"max_tokens": max_tokens, "extra_body": {"generation_config": settings}}
        whole = chat(client, **body).choices[0].message.content
        assert whole.endswith("\ufffd") and "".join(streamed(chat(client, **body, stream=True))[0]) == whole
    assert lengths


def output(tokens, is_finished):
    return SimpleNamespace(generated_tokens=tokens, is_finished=lambda: is_finished)


def detokenizer_of(end_tokens, stop_strings):
    stop = StopStrings(TOKENIZER, stop_strings, []) if stop_strings else None
    return Detokenizer(TOKENIZER, end_tokens, stop)


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "stop, expected",
    [([], "the cat sat on the möt 猫"), (["sat"], "the cat "), (["on the", "nowhere"], "the cat sat ")],
)
def test_deltas_make_the_text(step, stop, expected):
    tokens = TOKENIZER("the cat sat on the möt 猫", add_special_tokens=False)["input_ids"] + [END]
    detokenizer = detokenizer_of(END, stop)
    deltas = [detokenizer.put(output(tokens[:end], False)) for end in range(step, len(tokens), step)]
    deltas.append(detokenizer.put(output(tokens, True)))
    assert "".join(delta.content for delta in deltas) == expected
    assert [token for delta in deltas for token in delta.tokens] == tokens
    assert detokenizer.finish_reason == "stop"


def test_only_new_text_is_searched_for_stop_strings(monkeypatch):
    lengths = []

    def counted(text, stop_strings):
        lengths.append(len(text))
        return before_possible_stop(text, stop_strings)

    monkeypatch.setattr(detokenizer_file, "before_possible_stop", counted)
    tokens = TOKENIZER("the cat sat on the mat " * 20, add_special_tokens=False)["input_ids"]
    detokenizer = detokenizer_of(END, ["the dog"])
    text = "".join(detokenizer.put(output(tokens[:end], False)).content for end in range(1, len(tokens) + 1))
    assert text.startswith("the cat sat") and max(lengths) < 20


@pytest.mark.parametrize(
    "ends, last, stop, reason",
    [
        (END, END, [], "stop"),
        ([1, END], END, [], "stop"),
        (END, 40, [], "length"),
        (None, END, [], "length"),
        (END, 40, ["c"], "stop"),
    ],
)
def test_the_finish_reason(ends, last, stop, reason):
    detokenizer = detokenizer_of(ends, stop)
    detokenizer.put(output([*TOKENIZER("the cat", add_special_tokens=False)["input_ids"], last], True))
    assert detokenizer.finish_reason == reason


def test_stop_strings_end_a_text_and_are_no_part_of_it(checkpoint, client):
    text = generated(checkpoint)[2]
    ends = list(accumulate(map(len, commits(checkpoint))))  # a stop string may begin in one commit and end in another
    across = [text[end - 1 : end + 2] for end in ends[2:6]]
    for stop in (text[10:13], *across, [text[30:33], text[15:18]], "nowhere in it", []):
        expected = before_stop(text, stop if isinstance(stop, list) else [stop])
        answer = chat(client, stop=stop)
        assert answer.choices[0].message.content == expected, stop
        texts, reason, usage = streamed(chat(client, stop=stop, **WITH_USAGE))
        assert "".join(texts) == expected and usage == answer.usage
        assert reason == answer.choices[0].finish_reason == ("length" if expected == text else "stop")
        assert (usage.completion_tokens < 40) == (expected != text)
    assert before_possible_stop("ab<e", ["<end>", "e!"]) == "ab"
    assert before_possible_stop("ab<en|", ["<end>"]) == "ab<en|"
    assert before_possible_stop("ab!cd", ["!"]) == "ab"


def test_a_stop_string_that_begins_in_the_prompt_is_the_reason_of_the_end(checkpoint, client):
    text = generated(checkpoint, "the cat")[2]
    body = {"model": "tiny", "prompt": "the cat", "max_tokens": 40, "temperature": 0, "stop": f"t{text[:2]}"}
    whole = client.completions.create(**body)
    texts, reason, usage = streamed(client.completions.create(**body, **WITH_USAGE))
    assert "".join(texts) == whole.choices[0].text and text.startswith(whole.choices[0].text)
    assert usage == whole.usage and usage.completion_tokens < 40
    assert reason == whole.choices[0].finish_reason == "stop"


@property_settings(90)
@given(
    st.lists(st.sampled_from(LETTERS), min_size=2, max_size=12),
    st.lists(st.text("abcdehimost<|", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_the_same_token_ends_a_text_as_by_transformers(tokens, stop_strings, data):
    prompt_length = data.draw(st.integers(1, len(tokens) - 1))
    if data.draw(st.booleans()):  # one that is there
        text = TOKENIZER.decode(tokens)
        begin = data.draw(st.integers(0, len(text) - 1))
        stop_strings = [*stop_strings, text[begin : begin + data.draw(st.integers(1, 8))]]
    ours, theirs = (
        StopStrings(TOKENIZER, stop_strings, tokens[:prompt_length]),
        StopStringCriteria(TOKENIZER, stop_strings),
    )
    for end in range(prompt_length + 1, len(tokens) + 1):
        ids = torch.tensor([tokens[:end]])
        expected = theirs(ids, None).tolist()
        assert ours(ids, None).tolist() == expected
        if expected == [True]:
            return
