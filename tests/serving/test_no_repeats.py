"""n-grams that may not come twice: transformers' own processors are the reference."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_client import generated
from tiers import property_settings
from transformers import EncoderNoRepeatNGramLogitsProcessor, NoRepeatNGramLogitsProcessor

from wedlm.serving.asked import ChatRoute, Served, read_request
from wedlm.serving.no_repeats import NoRepeats

VOCABULARY = 5


def banned_in(processor, text, scores):
    return processor(torch.tensor([text]), scores).isinf()[0].tolist()


@property_settings(200)
@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), st.integers(1, 7), st.data())
def test_the_same_tokens_are_banned_as_by_transformers(text, size, data):
    prompt_length = data.draw(st.integers(1, len(text)))
    ours = NoRepeats(size), NoRepeats(size, prompt_length)
    encoder = EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([text[:prompt_length]]))
    theirs = NoRepeatNGramLogitsProcessor(size), encoder
    scores = torch.zeros(1, VOCABULARY)
    for end in range(prompt_length, len(text) + 1):
        for _ in range(data.draw(st.integers(1, 2))):  # a position may be asked about again
            for our, their in zip(ours, theirs, strict=True):
                assert banned_in(our, text[:end], scores) == banned_in(their, text[:end], scores)


@pytest.mark.parametrize("name", ["no_repeat_ngram_size", "encoder_no_repeat_ngram_size"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_request_gets_the_text_of_generate(checkpoint, client, name, size):
    from serving_client import chat

    given = {name: size, "decoding": "verified"}
    answer = chat(client, extra_body={"generation_config": given}).choices[0].message.content
    assert answer == generated(checkpoint, **given)[2]


@pytest.mark.parametrize("size", [1, 2, 5_000, 10**12])
def test_no_size_takes_long(checkpoint, size):
    """transformers makes a list of as many lists, and some of its versions copy all n-grams for each token."""
    body = {"prompt": "", "messages": [{"role": "user", "content": "the cat sat " * 4_000}]}
    settings = {"no_repeat_ngram_size": size, "encoder_no_repeat_ngram_size": size}
    begin = time.process_time()
    asked = read_request(
        Served("tiny", checkpoint[1], checkpoint[2], 0),
        ChatRoute,
        {"messages": body["messages"], "generation_config": settings},
    )
    ids, scores = torch.tensor([asked.tokens + [5] * 20]), torch.zeros(1, len(checkpoint[2]))
    for end in range(len(asked.tokens), ids.shape[1]):
        for processor in asked.processors[0]:
            processor(ids[:, :end], scores)
    assert len(asked.tokens) > 8_000 and time.process_time() - begin < 2
    assert not asked.config.no_repeat_ngram_size and not asked.config.encoder_no_repeat_ngram_size
