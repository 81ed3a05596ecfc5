"""The decoder of the ablations of training decodes as the package does, and as plain forwards without a cache."""

import pytest
import torch
from helpers import EOS, MASK, PROMPTS, left_padded, logits_of
from reference_decoder import decode as reference_decode


@pytest.fixture
def decode(load_benchmark):
    return load_benchmark("variant_decoding").decode


def cut(tokens: list[int], end: int = EOS) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@pytest.mark.parametrize(("window_size", "max_new_tokens", "penalty"), [(1, 5, 0.0), (4, 12, 0.1), (6, 15, 0.02)])
def test_causal_decoding_is_blockwise_decoding_of_the_package(decode, model, window_size, max_new_tokens, penalty):
    inputs = left_padded(PROMPTS[:4])
    how = {"window_size": window_size, "distance_penalty": penalty, "max_new_tokens": max_new_tokens}
    text = decode(model, inputs, "causal", **how).tolist()
    output = model.generate(**inputs, decoding="blockwise", entropy_threshold=None, do_sample=False, **how)
    expected = output[:, inputs["input_ids"].shape[1] :].tolist()
    assert [cut(tokens) for tokens in text] == [cut(tokens) for tokens in expected]


@pytest.mark.parametrize("inside", ["causal", "bidirectional"])
def test_decoding_is_what_plain_forwards_without_a_cache_give(decode, model, inside):
    how = {"window_size": 4, "distance_penalty": 0.05, "max_new_tokens": 10}
    prompts = PROMPTS[:3]
    texts = decode(model, left_padded(prompts), inside, **how).tolist()
    for prompt, text in zip(prompts, texts, strict=True):

        def forward(tokens, positions, prompt=prompt):
            num_new = len(tokens) - len(prompt)
            start = len(prompt) + (num_new - 1) // 4 * 4  # of the last window; all before it is clean
            sees = torch.ones(len(tokens), len(tokens)).tril().bool()
            sees[start:, start:] |= inside == "bidirectional"
            return logits_of(model)(tokens, positions, sees.tolist())

        how |= {"entropy_threshold": None, "decoding": "blockwise"}
        expected = reference_decode(forward, prompt, mask_token_id=MASK, eos_token_ids=[EOS], **how)
        assert expected.margin > 1e-4 and cut(text) == expected.ids


def test_decoding_ends_when_every_text_has(decode, model, monkeypatch):
    inputs = left_padded(PROMPTS[:2])
    how = {"window_size": 3, "distance_penalty": 0.0, "max_new_tokens": 12}
    text = decode(model, inputs, "causal", **how)
    assert text.shape == (2, 12)
    end = text[0, 4].item()
    monkeypatch.setattr(model.config, "eos_token_id", end)
    num_windows = text[0].tolist().index(end) // 3 + 1
    alone = decode(model, {name: rows[:1] for name, rows in inputs.items()}, "causal", **how)
    assert torch.equal(alone, text[:1, : 3 * num_windows])
