"""The text of an answer, streamed and whole: no part of a character lost, and the reason of its end."""

from types import SimpleNamespace

import pytest
from serving_client import WITH_USAGE, chat, commits, generated, streamed
from tiny_tokenizer import END, MASK, make_tokenizer
from transformers import GenerationConfig

from wedlm.serving import answer as answer_file
from wedlm.serving.answer import Answer
from wedlm.serving.stop_strings import before_possible_stop


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
    for max_tokens in lengths[:3]:
        body = {"max_tokens": max_tokens, "extra_body": {"generation_config": settings}}
        whole = chat(client, **body).choices[0].message.content
        assert whole.endswith("\ufffd") and "".join(streamed(chat(client, **body, stream=True))[0]) == whole
    assert lengths


def output(tokens, is_finished):
    return SimpleNamespace(generated_tokens=tokens, is_finished=lambda: is_finished)


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", [None, "sat", ["on the", "nowhere"]])
def test_parts_make_the_text(step, stop):
    tokenizer = make_tokenizer()
    text = "the cat sat on the möt 猫"
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + [END]
    answer = Answer(tokenizer, GenerationConfig(stop_strings=stop, eos_token_id=END))
    parts = [answer.put(output(tokens[:end], False)) for end in range(step, len(tokens), step)]
    parts.append(answer.put(output(tokens, True)))
    expected = {"sat": "the cat ", None: text}.get(stop if not isinstance(stop, list) else "", "the cat sat ")
    assert "".join(part.text for part in parts) == expected
    assert [token for part in parts for token in part.tokens] == tokens
    assert answer.finish_reason == "stop"


def test_only_new_text_is_searched_for_stop_strings(monkeypatch):
    looked_at = []

    def noted(text, stop_strings):
        looked_at.append(len(text))
        return before_possible_stop(text, stop_strings)

    monkeypatch.setattr(answer_file, "before_possible_stop", noted)
    tokenizer = make_tokenizer()
    tokens = tokenizer("the cat sat on the mat " * 20, add_special_tokens=False)["input_ids"]
    answer = Answer(tokenizer, GenerationConfig(stop_strings="the dog"))
    text = "".join(answer.put(output(tokens[:end], False)).text for end in range(1, len(tokens) + 1))
    assert text.startswith("the cat sat") and max(looked_at) < 20


@pytest.mark.parametrize(
    "ends, last, stop, reason",
    [
        (END, END, None, "stop"),
        ([1, END], END, None, "stop"),
        (END, 40, None, "length"),
        (None, END, None, "length"),
        (END, 40, "c", "stop"),
    ],
)
def test_the_reason_of_the_end(ends, last, stop, reason):
    tokenizer = make_tokenizer()
    tokens = [*tokenizer("the cat", add_special_tokens=False)["input_ids"], last]
    answer = Answer(tokenizer, GenerationConfig(eos_token_id=ends, stop_strings=stop))
    answer.put(output(tokens, True))
    assert answer.finish_reason == reason
