"""Log-probabilities of an answer, against a forward of the model over the whole text."""

import math

import pytest
import torch
from serving_client import WITH_USAGE, chat, generated

from wedlm.serving.token_scores import LEAST, TokenScores


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
@pytest.mark.parametrize("step", [1, 3, 40])
def test_they_are_those_of_an_ordinary_forward(checkpoint, banned, decoding, draws, step):
    tokenizer = checkpoint[2]
    scores = TokenScores(tokenizer, len(tokenizer("the dog")["input_ids"]), 4)
    _, ids, _ = generated(checkpoint, "the dog", decoding=decoding, logits_processor=[scores], **draws)
    ids = ids.tolist()
    logprobs = expected(checkpoint, tokenizer("the dog")["input_ids"], ids, banned)
    told = [each for begin in range(0, len(ids), step) for each in scores.told(ids[begin : begin + step])]
    assert [own.token for own, _ in told] == ids and not scores.noted
    for (own, likely), row in zip(told, logprobs, strict=True):
        assert own.logprob == pytest.approx(float(row[own.token]), abs=1e-4)
        best = row.topk(4)
        assert [each.logprob for each in likely] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert own.logprob <= likely[0].logprob + 1e-6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decoding", ["verified", "streaming", "blockwise", "autoregressive"])
def test_chats_tell_them_in_openais_form(checkpoint, client, decoding, stream):
    arguments = {"logprobs": True, "top_logprobs": 3, "extra_body": {"generation_config": {"decoding": decoding}}}
    if stream:
        chunks = [chunk for chunk in chat(client, **arguments, **WITH_USAGE) if chunk.choices]
        content = [each for chunk in chunks if (told := chunk.choices[0].logprobs) for each in told.content]
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
    told, text = answer.choices[0].logprobs, answer.choices[0].text
    assert "".join(told.tokens) == text and len(told.token_logprobs) == len(told.top_logprobs) == 9
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert text[offset:].startswith(token)
    assert client.completions.create(model="tiny", prompt="the dog", max_tokens=9).choices[0].logprobs is None


def test_what_cannot_be_has_the_least_number(checkpoint):
    scores = TokenScores(checkpoint[2], 1, 5)
    row = torch.full((1, len(checkpoint[2])), -torch.inf)
    row[0, 40:42] = 0.0
    scores(torch.tensor([[9]]), row)
    scores(torch.tensor([[9, 50]]), row)
    first, second = scores.of_chat([50, 41])
    assert first["logprob"] == LEAST and second["logprob"] == pytest.approx(math.log(0.5))
    assert len(first["top_logprobs"]) == 2


def test_memory_holds_one_distribution(checkpoint):
    scores = TokenScores(checkpoint[2], 1, 2)
    rows = torch.randn(30, len(checkpoint[2]))
    for length in range(30):
        scores(torch.tensor([[9] * (length + 1)]), rows[length : length + 1])
    assert len(scores.noted) == 29 and scores.last[1].shape == rows[0].shape
    scores.told([9] * 30)
    assert not scores.noted
