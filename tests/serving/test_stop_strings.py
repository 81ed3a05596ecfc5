"""Stop strings in whole answers and in streams."""

import re
import time
from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_client import WITH_USAGE, chat, commits, generated, streamed
from tiers import property_settings
from tiny_tokenizer import make_tokenizer
from transformers import StopStringCriteria

from wedlm.serving.asked import ChatRoute, Served, read_request
from wedlm.serving.stop_strings import StopStrings, before_possible_stop, before_stop

TOKENIZER = make_tokenizer()
LETTERS = [token for text, token in TOKENIZER.get_vocab().items() if re.fullmatch("[a-z<|]+", text)]


def test_stop_strings_end_a_text_and_are_no_part_of_it(checkpoint, client):
    text = generated(checkpoint)[2]
    ends = list(accumulate(map(len, commits(checkpoint))))  # a stop string may begin in one commit and end in another
    across = [text[end - 1 : end + 2] for end in ends[2:12]]
    for stop in (text[10:13], *across, [text[30:33], text[15:18]], "nowhere in it", []):
        expected = before_stop(text, stop)
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


@property_settings(150)
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


def test_long_stop_strings_are_prepared_at_once(checkpoint, monkeypatch):
    """transformers compares each character with each token of the vocabulary, in seconds for a large one."""
    monkeypatch.setattr(StopStringCriteria, "__init__", None)
    stop = ["".join(chr(97 + (i * k) % 26) for i in range(64)) for k in (1, 3, 5, 7)]
    body = {"messages": [{"role": "user", "content": "the cat"}], "stop": stop}
    begin = time.process_time()
    asked = read_request(Served("tiny", checkpoint[1], checkpoint[2], 0), ChatRoute, body)
    manager = checkpoint[1].init_continuous_batching()
    manager.add_request(asked.tokens, generation_config=asked.config, **asked.readers(0, checkpoint[2]))
    assert time.process_time() - begin < 1
