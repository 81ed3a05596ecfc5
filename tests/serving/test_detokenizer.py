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
from tiny_tokenizer import END, make_tokenizer
from transformers import StopStringCriteria

from wedlm.serving.detokenizer import Detokenizer, StopStrings, before_possible_stop, before_stop

TOKENIZER = make_tokenizer()
LETTERS = [token for text, token in TOKENIZER.get_vocab().items() if re.fullmatch("[a-z<|]+", text)]


def test_a_stream_tells_whole_commits(checkpoint, client):
    """A reader that is late gets several at once."""
    text = generated(checkpoint)[2]
    texts, reason, usage = streamed(chat(client, **WITH_USAGE))
    assert "".join(texts) == text and 1 < len(texts) < 30
    ends = {0, *accumulate(map(len, commits(checkpoint)))}
    assert set(accumulate(map(len, texts))) <= ends
    assert (reason, usage) == ("length", chat(client).usage)


def output(tokens, is_finished):
    return SimpleNamespace(generated_tokens=tokens, is_finished=lambda: is_finished)


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def detokenizer_of(end_tokens, stop_strings):
    stop = StopStrings(TOKENIZER, stop_strings, []) if stop_strings else None
    return Detokenizer(TOKENIZER, end_tokens, stop)


def deltas_of(detokenizer, tokens, step):
    deltas = [detokenizer.put(output(tokens[:end], False)) for end in range(step, len(tokens), step)]
    return [*deltas, detokenizer.put(output(tokens, True))]


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "stop, expected",
    [([], "the cat sat on the möt 猫"), (["sat"], "the cat "), (["on the", "nowhere"], "the cat sat ")],
)
def test_deltas_make_the_text(step, stop, expected):
    tokens = ids_of("the cat sat on the möt 猫") + [END]
    detokenizer = detokenizer_of(END, stop)
    deltas = deltas_of(detokenizer, tokens, step)
    assert "".join(delta.content for delta in deltas) == expected
    assert [token for delta in deltas for token in delta.tokens] == tokens
    assert detokenizer.finish_reason == "stop"


def test_a_text_may_end_within_a_character():
    """Tokens are bytes, and a stream holds back what makes no character until the end."""
    tokens = ids_of("möt 猫")
    for end in range(1, len(tokens) + 1):
        deltas = deltas_of(detokenizer_of(END, []), tokens[:end], 1)
        assert "".join(delta.content for delta in deltas) == TOKENIZER.decode(tokens[:end])
        assert not any("\ufffd" in delta.content for delta in deltas[:-1])


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
    detokenizer.put(output([*ids_of("the cat"), last], True))
    assert detokenizer.finish_reason == reason


def test_stop_strings_end_a_text_and_are_no_part_of_it(checkpoint, client):
    text = generated(checkpoint)[2]
    ends = list(accumulate(map(len, commits(checkpoint))))  # a stop string may begin in one commit and end in another
    for stop in (text[10:13], text[ends[3] - 1 : ends[3] + 2], [text[30:33], text[15:18]], "nowhere in it", []):
        expected = before_stop(text, stop if isinstance(stop, list) else [stop])
        answer = chat(client, stop=stop)
        assert answer.choices[0].message.content == expected, stop
        texts, reason, usage = streamed(chat(client, stop=stop, **WITH_USAGE))
        assert "".join(texts) == expected and usage == answer.usage
        assert reason == answer.choices[0].finish_reason == ("length" if expected == text else "stop")
        assert (usage.completion_tokens < 40) == (expected != text)
    assert before_possible_stop("ab<e", ["<end>", "e!"]) == "ab"
    assert before_possible_stop("ab<en|", ["<end>"]) == "ab<en|"


def test_a_stop_string_that_begins_in_the_prompt_is_the_reason_of_the_end(checkpoint, client):
    text = generated(checkpoint, "the cat")[2]
    body = {"model": "tiny", "prompt": "the cat", "max_tokens": 40, "temperature": 0, "stop": f"t{text[:2]}"}
    whole = client.completions.create(**body)
    assert text.startswith(whole.choices[0].text)
    assert whole.usage.completion_tokens < 40 and whole.choices[0].finish_reason == "stop"


def test_a_special_token_may_be_a_stop_string():
    (end,) = TOKENIZER("<|im_end|>").input_ids
    ours = StopStrings(TOKENIZER, ["<|im_end|>"], [5])
    assert [ours(torch.tensor([ids]), None).item() for ids in ([5, 6], [5, 6, end])] == [False, True]


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
    ours = StopStrings(TOKENIZER, stop_strings, tokens[:prompt_length])
    theirs = StopStringCriteria(TOKENIZER, stop_strings)
    for end in range(prompt_length + 1, len(tokens) + 1):
        ids = torch.tensor([tokens[:end]])
        expected = theirs(ids, None).tolist()
        assert ours(ids, None).tolist() == expected
        if expected == [True]:
            return
