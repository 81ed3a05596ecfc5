"""Attention over a RowCache by every implementation that can be chosen, and scores read a few slots at a time."""

import pytest
import torch
from decoded import PARALLEL, run
from helpers import CHECKPOINTS, PROMPTS, load
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig

from wedlm.generation import cache_attention
from wedlm.generation.cache_attention import attend


def slow_attention(query, keys, values, is_seen, scaling):
    """`[batch, heads, rows, head_dim]`, head by head and row by row."""
    groups = query.shape[1] // keys.shape[1]
    out = torch.zeros_like(query)
    for b, head, row in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        seen = is_seen[b, 0, row]
        key, value = keys[b, head // groups, seen], values[b, head // groups, seen]
        out[b, head, row] = (key @ query[b, head, row] * scaling).softmax(-1) @ value
    return out


def flash_stand_in(calls):
    """Makes flash-attn's function for caches, `[batch, rows, heads, head_dim]`, by its documentation."""

    def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, softmax_scale, causal):
        assert causal and cache_seqlens.dtype == torch.int32 and q.stride(-1) == k_cache.stride(-1) == 1
        calls.append((q.shape[1], cache_seqlens.tolist()))
        rows, entries = torch.arange(q.shape[1]), torch.arange(k_cache.shape[1])
        last = cache_seqlens[:, None] - q.shape[1] + rows  # of a row, aligned at the end
        is_seen = (entries <= last[..., None])[:, None]
        states = (each.transpose(1, 2) for each in (q, k_cache, v_cache))
        return slow_attention(*states, is_seen, softmax_scale).transpose(1, 2)

    return flash_attn_with_kvcache


@pytest.mark.parametrize("most_rows", [64, 0], ids=["as rows", "as heads"])
@pytest.mark.parametrize("heads, key_heads", [(4, 4), (6, 2), (8, 1)])
def test_rows_of_heads_that_share_keys_take_what_each_alone_would(heads, key_heads, most_rows, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(cache_attention, "MOST_QUERIES", most_rows)

    def kernel(*arguments, **options):  # some lay their output out as [batch, rows, heads, head_dim]
        return scaled_dot_product_attention(*arguments, **options).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(cache_attention, "scaled_dot_product_attention", kernel)
    config = AutoConfig.from_pretrained(
        CHECKPOINTS / "q3", num_attention_heads=heads, num_key_value_heads=key_heads, attn_implementation="sdpa"
    )
    query, keys, values = (
        torch.randn(2, heads, 5, 16),
        torch.randn(2, key_heads, 11, 16),
        torch.randn(2, key_heads, 11, 16),
    )
    is_seen = torch.rand(2, 1, 5, 11) < 0.5
    is_seen[..., 0] = True
    bias = cache_attention.score_bias(is_seen, 5, config, query)
    assert bias.shape[2] == (5 * heads // key_heads if most_rows else 5)
    got = attend(query, keys, values, bias, 0.3, dropout=0.0)
    torch.testing.assert_close(got, slow_attention(query, keys, values, is_seen, 0.3))
    causal = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    got = attend(query, keys[:, :, :5], values[:, :, :5], None, 0.3, dropout=0.0)
    torch.testing.assert_close(got, slow_attention(query, keys[:, :, :5], values[:, :, :5], causal, 0.3))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["eager", "flex_attention", "dual_stream"])
@pytest.mark.parametrize("decoding", PARALLEL)
@pytest.mark.parametrize("cache", [None, "static"])
def test_every_implementation_decodes_as_sdpa_does(name, decoding, cache):
    arguments = {"decoding": decoding, "window_size": 8}
    expected = run(load(CHECKPOINTS / "q3", attn_implementation="sdpa"), **arguments)
    got = run(load(CHECKPOINTS / "q3", attn_implementation=name), cache_implementation=cache, **arguments)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)


@pytest.mark.few(2)
@pytest.mark.parametrize("decoding", PARALLEL)
@pytest.mark.parametrize("cache", [None, "static"])
def test_flash_attention_reads_as_far_as_each_row_goes(decoding, cache, monkeypatch):
    model = load(CHECKPOINTS / "q3", attn_implementation="sdpa")
    arguments = {"decoding": decoding, "window_size": 8}
    expected = run(model, **arguments)
    calls = []
    monkeypatch.setattr(
        cache_attention, "lazy_import_flash_attention", lambda name: ((None, None, flash_stand_in(calls)), None)
    )
    model.config._attn_implementation = "flash_attention_2"
    got = run(model, cache_implementation=cache, **arguments)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)
    lengths = list(map(len, PROMPTS))
    first = calls[: model.config.num_hidden_layers]
    width = max(lengths) + (0 if decoding == "verified" else 8)
    assert cache == "static" or first == [(width, [width] * len(PROMPTS))] * len(first), (
        "the prompts, and behind shorter ones what nobody sees"
    )
    later = calls[len(first) :]
    if cache == "static":
        assert not calls
    elif decoding == "verified":  # groups of rows, of which one does not see another, are beyond it
        assert not later
    else:
        assert later[0][1] != later[-1][1]
        starts = [ends - later[0][0] for ends in later[0][1]]
        assert all(length <= start for length, start in zip(lengths, starts, strict=True))


def test_what_attention_cannot_do_is_refused_by_name(monkeypatch):
    model = load(CHECKPOINTS / "q3")
    monkeypatch.setattr(cache_attention, "lazy_import_flash_attention", lambda name: ((None, None, None), None))
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"attn_implementation='flash_attention_2' is not .*set_attn_implementation"):
        run(model)
    monkeypatch.setattr(cache_attention, "lazy_import_flash_attention", lambda name: ((None, None, print), None))
    with pytest.raises(ValueError, match="'flash_attention_2' is not offered by decoding='verified' with use_cache=F"):
        run(model, decoding="verified", use_cache=False)
    for name in ("flex_attention", "paged|sdpa"):
        model.config._attn_implementation = name
        with pytest.raises(ValueError, match=rf"attn_implementation='{name.replace('|', '.')}' is not offered"):
            run(model, use_cache=False)
