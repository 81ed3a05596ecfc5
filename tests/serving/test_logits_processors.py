"""Logits processors of requests: penalties, n-grams that may not repeat, and log-probabilities."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_client import WITH_USAGE, chat, generated
from tiers import property_settings
from transformers import EncoderNoRepeatNGramLogitsProcessor, NoRepeatNGramLogitsProcessor

from wedlm.serving.logits_processors import LEAST, NoRepeatNGrams, Penalties, TokenLogprobs

# --- n-grams: transformers' own processors are the reference ---

VOCABULARY = 5


def banned_in(processor, text, scores):
    return processor(torch.tensor([text]), scores).isinf()[0].tolist()


@property_settings(120)
@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), st.integers(1, 7), st.data())
def test_the_same_tokens_are_banned_as_by_transformers(text, size, data):
    prompt_length = data.draw(st.integers(1, len(text)))
    ours = NoRepeatNGrams(size), NoRepeatNGrams(size, prompt_length)
    encoder = EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([text[:prompt_length]]))
    theirs = NoRepeatNGramLogitsProcessor(size), encoder
    scores = torch.zeros(1, VOCABULARY)
    for end in range(prompt_length, len(text) + 1):
        for _ in range(data.draw(st.integers(1, 2))):  # a position may be asked about again
            for our, their in zip(ours, theirs, strict=True):
                assert banned_in(our, text[:end], scores) == banned_in(their, text[:end], scores)


# --- Penalties ---


def test_the_formula():
    ids = torch.tensor([[7, 7, 3, 1, 3, 3], [0, 1, 0, 0, 0, 2]])  # two tokens are the prompt
    scores = torch.randn(2, 9).index_fill(1, torch.tensor([1]), -torch.inf)
    expected = scores.clone()
    for row, tokens in enumerate(ids[:, 2:].tolist()):
        for token, number in Counter(tokens).items():
            expected[row, token] -= 0.5 + 0.25 * number
    assert torch.allclose(Penalties(0.5, 0.25, 2)(ids, scores.clone()), expected)


@pytest.mark.parametrize("draws", [{}, {"seed": 3, "temperature": 1.0}])
def test_penalties_of_a_request(checkpoint, client, draws):
    """They count the tokens of the answer alone, in verified decoding as token by token."""
    prompt_length = generated(checkpoint, max_new_tokens=1)[0].sequences.shape[1] - 1
    settings = {"decoding": "autoregressive", "do_sample": bool(draws), **draws}
    for presence, frequency in ((0.4, 0.3), (-1.0, 0.0), (0.0, 2.0)):
        processors = [Penalties(presence, frequency, prompt_length)]
        expected = generated(checkpoint, **settings, logits_processor=processors)[2]
        body = {"generation_config": {"decoding": "verified"}}
        answer = chat(client, presence_penalty=presence, frequency_penalty=frequency, extra_body=body, **draws)
        assert answer.choices[0].message.content == expected != generated(checkpoint, **settings)[2]


# --- Log-probabilities, against a forward of the model over the whole text ---


@pytest.mark.parametrize("draws", [{}, {"do_sample": True, "temperature": 1.4, "top_k": 20, "seed": 3}])
@pytest.mark.parametrize("step", [3, 40])
def test_they_are_those_of_an_ordinary_forward(checkpoint, draws, step):
    _, model, tokenizer = checkpoint
    prompt = tokenizer("the dog")["input_ids"]
    scores = TokenLogprobs(tokenizer, len(prompt), 4)
    ids = generated(checkpoint, "the dog", decoding="verified", logits_processor=[scores], **draws)[1].tolist()
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].detach()
    logits[:, [model.config.mask_token_id, *model.generation_config.suppress_tokens]] = -torch.inf
    entries = [each for begin in range(0, len(ids), step) for each in scores.take(ids[begin : begin + step])]
    assert [own.token for own, _ in entries] == ids and not scores.recorded
    for (own, likely), row in zip(entries, logits.log_softmax(-1), strict=True):
        assert own.value == pytest.approx(float(row[own.token]), abs=1e-4)
        assert [each.value for each in likely] == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decoding", ["verified", "streaming"])
def test_chats_tell_them_in_openais_form(client, decoding, stream):
    arguments = {"logprobs": True, "top_logprobs": 3, "extra_body": {"generation_config": {"decoding": decoding}}}
    if stream:
        chunks = [chunk for chunk in chat(client, **arguments, **WITH_USAGE) if chunk.choices]
        content = [each for chunk in chunks if (entries := chunk.choices[0].logprobs) for each in entries.content]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        choice = chat(client, **arguments).choices[0]
        content, text = choice.logprobs.content, choice.message.content
    # A reader of the text makes streaming decoding go in order, so its text may be another one than without.
    assert len(content) == 40 and "".join(each.token for each in content) == text
    for each in content:
        assert bytes(each.bytes).decode() == each.token and each.logprob <= 0
        best = [other.logprob for other in each.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True)
        if decoding == "verified":
            assert each.token == each.top_logprobs[0].token


def test_completions_tell_them_in_openais_form(client):
    answer = client.completions.create(model="tiny", prompt="the dog", max_tokens=9, temperature=0, logprobs=2)
    entries, text = answer.choices[0].logprobs, answer.choices[0].text
    assert "".join(entries.tokens) == text and len(entries.token_logprobs) == len(entries.top_logprobs) == 9
    for token, offset in zip(entries.tokens, entries.text_offset, strict=True):
        assert text[offset:].startswith(token)
    assert client.completions.create(model="tiny", prompt="the dog", max_tokens=9).choices[0].logprobs is None


def test_what_cannot_be_has_the_least_number(checkpoint):
    scores = TokenLogprobs(checkpoint[2], 1, 5)
    row = torch.full((1, len(checkpoint[2])), -torch.inf)
    row[0, 40:42] = 0.0
    scores(torch.tensor([[9]]), row)
    scores(torch.tensor([[9, 50]]), row)
    first, second = scores.chat_form([50, 41])
    assert first["logprob"] == LEAST and second["logprob"] == pytest.approx(math.log(0.5))
    assert len(first["top_logprobs"]) == 2
