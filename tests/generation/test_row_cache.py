"""Caches that come out of generate() and go into the next call."""

import pytest
import torch
from decoded import run
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import DynamicLayer

from wedlm.generation import row_cache
from wedlm.generation.row_cache import attend
from wedlm.generation.transformers_internals import CACHE

MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD, "return_dict_in_generate": True}
DECODINGS = ("streaming", "blockwise", "verified", "autoregressive")


@pytest.fixture
def model():
    return MODELS["q3"]


def mask_of(output, inputs):
    """The attention mask of the sequences: that of the prompts, and ones for new tokens that are no padding."""
    new = output.sequences[:, inputs["input_ids"].shape[1] :]
    counts = (output.tokens_per_forward * output.forwards).round().long()
    is_new = torch.arange(new.shape[1]) < counts[:, None]
    return torch.cat([inputs["attention_mask"], is_new.long()], dim=-1)


def turn(output, mask, said):
    """Everything so far and what is said next, as the inputs of the next call."""
    return {
        "input_ids": torch.cat([output.sequences, said], dim=-1),
        "attention_mask": torch.cat([mask, torch.ones_like(said)], dim=-1),
    }


def assert_is_prefill(model, cache, input_ids, attention_mask):
    """The cache holds what one plain forward over its columns computes, wherever the mask has ones."""
    num_cached = cache.get_seq_length()
    assert type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)
    for row in range(len(input_ids)):
        is_text = attention_mask[row, :num_cached].bool()
        fresh = DynamicCache()
        model(input_ids[row, :num_cached][is_text][None], **{CACHE: fresh})
        for got, expected in zip(cache.layers, fresh.layers, strict=True):
            torch.testing.assert_close(got.keys[row][:, is_text], expected.keys[0])
            torch.testing.assert_close(got.values[row][:, is_text], expected.values[0])


@given(st.data())
@property_settings(10, deadline=None, derandomize=True)
def test_ten_turns_equal_a_fresh_call_each(data):
    """In ragged batches, with decodings, settings and ways to pass the cache mixed between turns."""
    model = MODELS[data.draw(st.sampled_from(["q25", "q3"]), "model")]
    prompts = data.draw(st.lists(st.lists(st.integers(3, 149), min_size=1, max_size=9), min_size=1, max_size=4))
    inputs, cache = left_padded(prompts), None
    for _ in range(10):
        arguments = {
            **SPECIAL,
            "decoding": data.draw(st.sampled_from(DECODINGS), "decoding"),
            "max_new_tokens": data.draw(st.integers(1, 12), "max_new_tokens"),
            "window_size": data.draw(st.integers(1, 8), "window_size"),
            "entropy_threshold": data.draw(st.sampled_from([None, 0.4, 2.0, 100.0]), "threshold"),
            "eos_token_id": [EOS, *range(3, data.draw(st.sampled_from([3, 20]), "end tokens"))],
            "repetition_penalty": data.draw(st.sampled_from([1.0, 1.3]), "penalty"),
            "query_cost": 0,  # otherwise rounding may decide what pays
        }
        fresh = model.generate(**inputs, **arguments)
        output = fresh
        if cache is not None:
            num_cached = cache.get_seq_length()
            way = data.draw(st.sampled_from(["all ids", "new ids"]), "way")
            given_ids = inputs["input_ids"][:, num_cached:] if way == "new ids" else inputs["input_ids"]
            if way == "new ids" and arguments["repetition_penalty"] != 1.0:
                arguments["repetition_penalty"] = 1.0  # it would see the new ids only, as in transformers
                fresh = model.generate(**inputs, **arguments)
            output = model.generate(
                input_ids=given_ids, attention_mask=inputs["attention_mask"], **{CACHE: cache}, **arguments
            )
            assert output[CACHE] is cache
            assert torch.equal(output.sequences, fresh.sequences[:, -output.sequences.shape[1] :])
            assert output.sequences.shape[1] == fresh.sequences.shape[1] - (num_cached if way == "new ids" else 0)
            if way != "new ids" or arguments["decoding"] != "verified":  # look-up sees the new ids only
                assert torch.equal(output.forwards, fresh.forwards)
            output.sequences = fresh.sequences
        cache = output[CACHE]
        mask = mask_of(fresh, inputs)
        assert cache.get_seq_length() < fresh.sequences.shape[1]
        assert_is_prefill(model, cache, fresh.sequences, mask)
        said = torch.tensor(data.draw(st.lists(st.integers(3, 149), min_size=1, max_size=5), "said"))
        inputs = turn(fresh, mask, said.expand(len(prompts), -1))


@pytest.mark.parametrize("decoding, num_missing", [("autoregressive", 1), ("verified", 1), ("blockwise", 8)])
def test_what_comes_back_lacks_what_the_last_step_has_written(model, decoding, num_missing):
    """Blockwise, that is a whole block: none of it is committed before all of it is filled."""
    output = model.generate(
        torch.tensor([PROMPTS[0]]), decoding=decoding, window_size=8, max_new_tokens=24, eos_token_id=None,
        pad_token_id=PAD, return_dict_in_generate=True,
    )  # fmt: skip
    assert output[CACHE].get_seq_length() == output.sequences.shape[1] - num_missing


def test_what_comes_back_covers_the_columns_that_every_row_has(model):
    inputs = left_padded(PROMPTS)
    arguments = {**SPECIAL, "max_new_tokens": 40, "entropy_threshold": 1.0}
    output = model.generate(**inputs, **arguments)
    alone = [model.generate(**left_padded([prompt]), **arguments) for prompt in PROMPTS]
    cached = [row[CACHE].get_seq_length() - len(prompt) for row, prompt in zip(alone, PROMPTS, strict=True)]
    assert len(set(cached)) > 1
    assert output[CACHE].get_seq_length() == 40 + min(cached)
    ends = [row.forwards.item() for row in alone]
    assert 2 * sum(end == max(ends) for end in ends) <= len(ends), "no row left the batch before the end"
    assert_is_prefill(model, output[CACHE], output.sequences, mask_of(output, inputs))
    for layer in output[CACHE].layers:
        padding = inputs["attention_mask"].eq(0)
        assert layer.keys[:, :, :40].transpose(1, 2)[padding].eq(0).all()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_cache_that_a_plain_forward_made(model, decoding):
    """The cache holds all columns but the last, some of them in another dtype as under autocast, or all."""
    inputs = left_padded(PROMPTS)
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    arguments = {**SPECIAL, "max_new_tokens": 12, "entropy_threshold": 1.0, "decoding": decoding}
    expected = model.generate(**inputs, **arguments).sequences
    for num_cached in (39, 11) + (() if decoding == "autoregressive" else (40,)):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(
                inputs["input_ids"][:, :num_cached], attention_mask=inputs["attention_mask"][:, :num_cached],
                position_ids=positions[:, :num_cached], **{CACHE: cache},
            )  # fmt: skip
        for layer in cache.layers if num_cached == 11 else ():
            layer.keys, layer.values = layer.keys.float(), layer.values.float()
        assert torch.equal(model.generate(**inputs, **arguments, **{CACHE: cache}).sequences, expected)


@pytest.mark.parametrize("returns", [True, False])
def test_an_empty_cache_is_filled_in_place(returns):
    model, cache, inputs = MODELS["q3"], DynamicCache(config=MODELS["q3"].config), left_padded(PROMPTS)
    arguments = {**SPECIAL, "max_new_tokens": 12, "entropy_threshold": 1.0, "return_dict_in_generate": returns}
    output = model.generate(**inputs, **arguments, **{CACHE: cache})
    expected = model.generate(**inputs, **arguments | {"return_dict_in_generate": True})
    assert torch.equal(output.sequences if returns else output, expected.sequences)
    assert not returns or output[CACHE] is cache
    assert_is_prefill(model, cache, expected.sequences, mask_of(expected, inputs))


def contents(cache):
    return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]


@pytest.mark.parametrize("where", ["in a processor", "in a layer"])
@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_call_that_fails_leaves_the_cache_as_it_was(model, decoding, where):
    """Also if it fails behind the first layer of a forward over one new column."""
    inputs, cache = left_padded(PROMPTS), DynamicCache()
    settings = {**SPECIAL, "max_new_tokens": 12, "eos_token_id": None}
    output = model.generate(**inputs, **settings, decoding="autoregressive", **{CACHE: cache})
    following = turn(output, mask_of(output, inputs), torch.zeros(5, 0, dtype=torch.long))
    settings["decoding"] = decoding
    before, calls = contents(cache), []

    def fails(ids, scores):
        calls.append(ids)
        if len(calls) == (5 if where == "in a processor" else 1):
            raise KeyError
        return scores

    more = {"logits_processor": [fails]} if where == "in a processor" else {}
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: None if more else fails(None, None))
    with pytest.raises(KeyError):
        model.generate(**following, **settings, **more, **{CACHE: cache})
    handle.remove()
    for got, expected in zip(contents(cache), before, strict=True):
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    again = model.generate(**following, **settings, **{CACHE: cache}).sequences
    assert torch.equal(again, model.generate(**following, **settings).sequences)


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
@pytest.mark.parametrize("more", [{"use_cache": False}, *({"prefill_chunk_size": n} for n in (1, 7, 39, 40))], ids=str)
def test_other_ways_to_the_same_text(model, decoding, more):
    arguments = {**SPECIAL, "max_new_tokens": 20, "entropy_threshold": 1.0, "decoding": decoding, "window_size": 8}
    arguments |= {"query_cost": 0.1}
    rows = []
    handle = model.model.register_forward_hook(
        lambda module, args, kwargs, output: rows.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    expected = model.generate(**left_padded(PROMPTS), **arguments)
    rows.clear()
    got = model.generate(**left_padded(PROMPTS), **arguments, **more)
    handle.remove()
    assert torch.equal(got.sequences, expected.sequences)
    assert torch.equal(got.prefix_cacheability, expected.prefix_cacheability)
    if "use_cache" in more:
        assert torch.equal(got.forwards, expected.forwards)
        assert min(rows) >= 40, "some forward did without the prompt"
    else:
        size = more["prefill_chunk_size"]
        ahead = (40 - 1) // size
        assert got.forwards.tolist() == [n + ahead for n in expected.forwards.tolist()]
        behind = 0 if decoding == "verified" else 8
        assert rows[:ahead] == [size] * ahead and rows[ahead] == 40 - ahead * size + behind
        assert_is_prefill(model, got[CACHE], got.sequences, mask_of(got, left_padded(PROMPTS)))


# --- What cannot be continued from ---


def cache_of(model, batch, num_columns):
    cache = DynamicCache()
    with torch.no_grad():
        model(random_tokens(batch, num_columns), **{CACHE: cache})
    return cache


@pytest.mark.parametrize(
    "batch, cached, ids, mask, message",
    [
        (1, 9, 6, 6, f"{CACHE} holds 9 columns, input_ids 6; pass the whole text, or .*mask over all 15"),
        (1, 9, 6, 14, rf"attention_mask has shape \(1, 14\), {CACHE} 9 columns and input_ids \(1, 6\); "),
        (1, 9, 0, 9, "input_ids holds no tokens; pass the text whole, .* or at least its last token"),
        (2, 4, 6, 6, rf"{CACHE} holds 2 rows and the batch has 1 .*batch_repeat_interleave\(n\)"),
    ],
)
def test_caches_that_do_not_fit(model, batch, cached, ids, mask, message):
    cache = cache_of(model, batch, cached)
    with pytest.raises(ValueError, match=message):
        model.generate(
            random_tokens(1, ids), attention_mask=torch.ones(1, mask, dtype=torch.long), **{CACHE: cache},
            max_new_tokens=4,
        )  # fmt: skip


def test_a_cache_of_another_model_is_refused():
    cache = DynamicCache()
    for i in range(2):
        cache.update(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8), i)
    with pytest.raises(ValueError, match=rf"{CACHE} holds 2 layers of \(heads, head_dim\)=\(2, 8\), and "):
        MODELS["q3"].generate(random_tokens(1, 6), **{CACHE: cache}, max_new_tokens=4)


def test_a_cache_repeated_for_several_sequences(model):
    prompt = random_tokens(1, 9)
    arguments = {**SPECIAL, "max_new_tokens": 6, "num_return_sequences": 3, "do_sample": True, "top_k": 1}
    with pytest.raises(ValueError, match=f"{CACHE} holds 1 rows and the batch has 3"):
        model.generate(prompt, **{CACHE: cache_of(model, 1, 8)}, **arguments)
    cache = cache_of(model, 1, 8)
    cache.batch_repeat_interleave(3)
    got = model.generate(prompt, **{CACHE: cache}, **arguments)
    assert torch.equal(got.sequences, model.generate(prompt, **arguments).sequences)


def test_zeros_between_the_tokens_are_no_text(model):
    """As between the turns of a batch whose rows end at different times."""
    ids, mask = torch.tensor([[5, 9, 9, 6, 7, MASK, 8]]), torch.tensor([[1, 0, 0, 1, 1, 0, 1]])
    got = model.generate(ids, attention_mask=mask, max_new_tokens=8)
    expected = model.generate(torch.tensor([[5, 6, 7, 8]]), attention_mask=torch.ones(1, 4).long(), max_new_tokens=8)
    assert torch.equal(got[0, 7:], expected[0, 4:])
    assert torch.equal(got[:, :7], ids)


def test_text_behind_a_late_end_does_not_come_back(model):
    """A criterion sees a row that is ahead of another only when the other has come to its width."""
    inputs, num_tokens = left_padded([PROMPTS[0], *PROMPTS]), 4
    output = model.generate(
        **inputs, **SPECIAL | {"eos_token_id": None}, max_new_tokens=12, entropy_threshold=1.0, window_size=3,
        stopping_criteria=[lambda ids, scores: torch.arange(len(ids)).eq(0) & (ids.shape[1] >= 40 + num_tokens)],
    )  # fmt: skip
    assert output.sequences[0, 40 + num_tokens :].eq(PAD).all()
    assert output[CACHE].get_seq_length() <= 40 + num_tokens
    assert_is_prefill(model, output[CACHE], output.sequences, mask_of(output, inputs))


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
    monkeypatch.setattr(row_cache, "MOST_QUERIES", most_rows)

    def kernel(*arguments, **options):  # some lay their output out as [batch, rows, heads, head_dim]
        return scaled_dot_product_attention(*arguments, **options).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(row_cache, "scaled_dot_product_attention", kernel)
    config = AutoConfig.from_pretrained(
        CHECKPOINTS / "q3", num_attention_heads=heads, num_key_value_heads=key_heads, attn_implementation="sdpa"
    )
    query, keys, values = (torch.randn(2, *shape, 16) for shape in ((heads, 5), (key_heads, 11), (key_heads, 11)))
    is_seen = torch.rand(2, 1, 5, 11) < 0.5
    is_seen[..., 0] = True
    bias = row_cache.score_bias(is_seen, 5, config, query)
    assert bias.shape[2] == (5 * heads // key_heads if most_rows else 5)
    got = attend(query, keys, values, bias, 0.3, dropout=0.0)
    torch.testing.assert_close(got, slow_attention(query, keys, values, is_seen, 0.3))
    causal = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    got = attend(query, keys[:, :, :5], values[:, :, :5], None, 0.3, dropout=0.0)
    torch.testing.assert_close(got, slow_attention(query, keys[:, :, :5], values[:, :, :5], causal, 0.3))


@pytest.mark.parametrize("name", ["eager", "flex_attention", "dual_stream"])
@pytest.mark.parametrize("decoding, cache", [("streaming", "static"), ("verified", None)])
def test_every_implementation_decodes_as_sdpa_does(name, decoding, cache):
    arguments = {"decoding": decoding, "window_size": 8}
    expected = run(load(CHECKPOINTS / "q3", attn_implementation="sdpa"), **arguments)
    got = run(load(CHECKPOINTS / "q3", attn_implementation=name), cache_implementation=cache, **arguments)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)


@pytest.mark.parametrize("decoding, cache", [("streaming", None), ("verified", None), ("blockwise", "static")])
def test_flash_attention_reads_as_far_as_each_row_goes(decoding, cache, monkeypatch):
    model = load(CHECKPOINTS / "q3", attn_implementation="sdpa")
    arguments = {"decoding": decoding, "window_size": 8}
    expected = run(model, **arguments)
    calls = []
    monkeypatch.setattr(
        row_cache, "lazy_import_flash_attention", lambda name: ((None, None, flash_stand_in(calls)), None)
    )
    model.config._attn_implementation = "flash_attention_2"
    got = run(model, cache_implementation=cache, **arguments)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)
    lengths, num_layers = list(map(len, PROMPTS)), model.config.num_hidden_layers
    first, later = calls[:num_layers], calls[num_layers:]
    # The prompts, and behind shorter ones what nobody sees. Groups, which do not see each other, are beyond it.
    width = max(lengths) + (0 if decoding == "verified" else 8)
    assert first == ([] if cache == "static" else [(width, [width] * len(PROMPTS))] * num_layers)
    assert bool(later) == (decoding == "streaming")
    if later:
        starts = [ends - later[0][0] for ends in later[0][1]]
        assert all(length <= start for length, start in zip(lengths, starts, strict=True))
        assert later[0][1] != later[-1][1]


def test_what_attention_cannot_do_is_refused_by_name(monkeypatch):
    model = load(CHECKPOINTS / "q3")
    monkeypatch.setattr(row_cache, "lazy_import_flash_attention", lambda name: ((None, None, None), None))
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"attn_implementation='flash_attention_2' is not .*set_attn_implementation"):
        run(model)
    monkeypatch.setattr(row_cache, "lazy_import_flash_attention", lambda name: ((None, None, print), None))
    with pytest.raises(ValueError, match="'flash_attention_2' is not offered by decoding='verified' with use_cache=F"):
        run(model, decoding="verified", use_cache=False)
    for name in ("flex_attention", "paged|sdpa"):
        model.config._attn_implementation = name
        with pytest.raises(ValueError, match=rf"attn_implementation='{name.replace('|', '.')}' is not offered"):
            run(model, use_cache=False)
