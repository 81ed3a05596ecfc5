"""Logits processors of requests: penalties, n-grams that may not repeat, and log-probabilities."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_client import WITH_USAGE, chat, generated
from tiers import property_settings
from tiny_tokenizer import MASK
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

DECODINGS = ("autoregressive", "verified", "streaming", "blockwise")


def prompt_length_of(checkpoint):
    return generated(checkpoint, max_new_tokens=1)[0].sequences.shape[1] - 1


def texts(checkpoint, *penalties, **settings):
    processor = Penalties(*penalties, prompt_length_of(checkpoint))
    return generated(checkpoint, logits_processor=[processor], **settings)[1].tolist()


def test_the_formula():
    ids = torch.tensor([[7, 7, 3, 1, 3, 3], [0, 1, 0, 0, 0, 2]])  # two tokens are the prompt
    scores = torch.randn(2, 9)
    expected = scores.clone()
    for row, tokens in enumerate(ids[:, 2:].tolist()):
        for token, number in Counter(tokens).items():
            expected[row, token] -= 0.5 + 0.25 * number
    assert torch.allclose(Penalties(0.5, 0.25, 2)(ids, scores.clone()), expected)
    assert Penalties(0.5, 0.25, 6)(ids, scores).equal(scores)
    assert Penalties(-2.0, 0.0, 2)(ids, scores)[0, 3] == scores[0, 3] + 2
    impossible = scores.index_fill(1, torch.tensor([3]), -torch.inf)
    assert Penalties(0.5, 0.25, 2)(ids, impossible)[:, 3].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("penalties", [(0.4, 0.3), (-1.0, 0.0)])
def test_verified_text_is_the_autoregressive_one(checkpoint, penalties, seed):
    drawn = {"seed": seed, "do_sample": True, "top_k": 50} if seed else {}
    one, other = (texts(checkpoint, *penalties, decoding=decoding, **drawn) for decoding in DECODINGS[:2])
    assert one == other != generated(checkpoint, decoding="autoregressive", **drawn)[1].tolist()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_the_penalties_count_the_tokens_of_the_answer_and_no_others(checkpoint, decoding):
    seen = []

    class Seen(Penalties):
        def __call__(self, input_ids, scores):
            seen.append(input_ids[0].tolist())
            return super().__call__(input_ids, scores)

    processor = Seen(1e4, 0.0, prompt_length_of(checkpoint))
    output, answer, _ = generated(checkpoint, logits_processor=[processor], decoding=decoding)
    whole = output.sequences[0].tolist()
    assert all(ids == whole[: len(ids)] for ids in seen) and MASK not in answer
    answer = answer.tolist()
    assert len(set(answer)) == len(answer) == 40  # no token may come twice, and those of the prompt may come
    plain = generated(checkpoint, decoding=decoding)[1].tolist()
    assert len(set(plain)) < 40


# --- Log-probabilities, against a forward of the model over the whole text ---


def expected(checkpoint, prompt, ids, banned):
    """The log-probabilities of each token's position by one ordinary forward."""
    logits = checkpoint[1](torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    logits[:, banned] = -torch.inf
    return logits.log_softmax(-1)


@pytest.fixture
def banned(checkpoint):
    return [checkpoint[1].config.mask_token_id, *checkpoint[1].generation_config.suppress_tokens]


@pytest.mark.parametrize("decoding", ["verified", "autoregressive"])
@pytest.mark.parametrize("draws", [{}, {"do_sample": True, "temperature": 1.4, "top_k": 20, "seed": 3}])
@pytest.mark.parametrize("step", [3, 40])
def test_they_are_those_of_an_ordinary_forward(checkpoint, banned, decoding, draws, step):
    tokenizer = checkpoint[2]
    scores = TokenLogprobs(tokenizer, len(tokenizer("the dog")["input_ids"]), 4)
    _, ids, _ = generated(checkpoint, "the dog", decoding=decoding, logits_processor=[scores], **draws)
    ids = ids.tolist()
    logprobs = expected(checkpoint, tokenizer("the dog")["input_ids"], ids, banned)
    entries = [each for begin in range(0, len(ids), step) for each in scores.take(ids[begin : begin + step])]
    assert [own.token for own, _ in entries] == ids and not scores.recorded
    for (own, likely), row in zip(entries, logprobs, strict=True):
        assert own.value == pytest.approx(float(row[own.token]), abs=1e-4)
        best = row.topk(4)
        assert [each.value for each in likely] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert own.value <= likely[0].value + 1e-6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decoding", ["verified", "streaming", "blockwise", "autoregressive"])
def test_chats_tell_them_in_openais_form(checkpoint, client, decoding, stream):
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
        assert bytes(each.bytes).decode() == each.token and each.logprob <= 0 and len(each.top_logprobs) == 3
        best = [other.logprob for other in each.top_logprobs]
        assert best == sorted(best, reverse=True) and sum(map(math.exp, best)) <= 1 + 1e-6
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


def test_memory_holds_one_distribution(checkpoint):
    scores = TokenLogprobs(checkpoint[2], 1, 2)
    rows = torch.randn(30, len(checkpoint[2]))
    for length in range(30):
        scores(torch.tensor([[9] * (length + 1)]), rows[length : length + 1])
    assert len(scores.recorded) == 29 and scores.last[1].shape == rows[0].shape
    scores.take([9] * 30)
    assert not scores.recorded
