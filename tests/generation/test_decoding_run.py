"""The loop of one call: which rows, queries and entries its forwards have, and what they cost."""

import math
import threading

import pytest
import torch
from decoded import forwards_seen, generate
from helpers import (
    PROMPTS,
    Waits,
)
from transformers import (
    DynamicCache,
)

from wedlm.generation import decoding_run
from wedlm.generation.row_cache import RowCache
from wedlm.generation.step import take_step
from wedlm.generation.transformers_internals import CACHE


@pytest.mark.few(2)
@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified"])
def test_the_cache_equals_a_fresh_prefill_after_every_step(model, decoding, monkeypatch):
    snapshots = []

    def take_and_look(model, policy, window, queries, cache, *more):
        status = take_step(model, policy, window, queries, cache, *more)
        keys, values = ([getattr(layer, kind).clone() for layer in cache.layers] for kind in ("keys", "values"))
        snapshots.append(
            (cache.lengths.clone(), window.prompt_lengths, window.start, window.tokens.clone(), keys, values)
        )
        return status

    monkeypatch.setattr("wedlm.generation.decoding_run.take_step", take_and_look)
    generate(model, PROMPTS[:3], max_new_tokens=24, entropy_threshold=1.0, window_size=4, decoding=decoding)
    assert len(snapshots) > 5
    monkeypatch.undo()
    checked = 0
    for lengths, prompt_lengths, start, tokens, keys, values in snapshots:
        assert torch.equal(lengths, prompt_lengths + start)
        for b in range(len(lengths)):
            prompt = next(p for p in PROMPTS[:3] if len(p) == prompt_lengths[b])
            fresh = DynamicCache()
            model(torch.tensor([prompt + tokens[b, : start[b]].tolist()]), **{CACHE: fresh})
            for i, layer in enumerate(fresh.layers):
                for got, expected in ((keys[i], layer.keys), (values[i], layer.values)):
                    torch.testing.assert_close(got[b, :, : lengths[b]], expected[0], atol=1e-5, rtol=1e-4)
                    checked += 1
    assert checked > 100


def test_masks_behind_the_window_change_nothing(model, monkeypatch):
    expected = generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0)
    read = decoding_run.read_status

    def wider(*arguments):
        status = read(*arguments)
        return status._replace(num_queries=[number + 7 for number in status.num_queries])

    monkeypatch.setattr(decoding_run, "read_status", wider)
    assert generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0) == expected


@pytest.mark.few(1)
def test_the_end_token_is_kept_and_nothing_follows_it(model):
    (free,) = generate(model, [PROMPTS[2]], max_new_tokens=30, eos_token_id=None, entropy_threshold=1.0)
    for k, token in enumerate(free.ids):
        (row,) = generate(model, [PROMPTS[2]], max_new_tokens=30, eos_token_id=[token], entropy_threshold=1.0)
        assert row.ids == free.ids[: free.ids.index(token) + 1]
        assert row.forwards <= free.forwards
        if k == 0:
            assert row.forwards < free.forwards


def test_length_limits_are_transformers_own(model):
    prompt = torch.tensor([PROMPTS[2]])
    inputs = {"attention_mask": torch.ones_like(prompt), "eos_token_id": None, "pad_token_id": 0}
    assert model.generate(prompt, **inputs, max_length=20).shape == (1, 20)
    assert model.generate(prompt, **inputs, max_new_tokens=5).shape == (1, 17)
    default = model.generate(prompt, **inputs, decoding="autoregressive").shape
    assert model.generate(prompt, **inputs).shape == default
    with pytest.raises(ValueError, match="max_new_tokens|max_length"):
        model.generate(prompt, **inputs, max_new_tokens=0)


def test_num_return_sequences_repeats_the_row(model):
    prompt = torch.tensor([PROMPTS[2]])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, num_return_sequences=3,
                            do_sample=True, top_k=1)  # fmt: skip
    assert output.shape[0] == 3
    assert torch.equal(output[0], output[1]) and torch.equal(output[0], output[2])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_rows_stay_where_a_hook_may_count_on_them(model, kind):
    """As one that steers each row by a vector of its own."""
    vectors = torch.randn(5, 1, 48, generator=torch.Generator().manual_seed(0))
    layer = model.model.layers[1]

    def steer(batch_rows):
        if kind == "register_forward_hook":
            return layer.register_forward_hook(lambda module, args, output: output + vectors[batch_rows])
        return layer.register_forward_pre_hook(lambda module, args: (args[0] + vectors[batch_rows], *args[1:]))

    alone = []
    for row, prompt in enumerate(PROMPTS):
        handle = steer([row])
        alone += generate(model, [prompt], max_new_tokens=30, entropy_threshold=1.0)
        handle.remove()
    assert len({row.forwards for row in alone}) > 1
    steer(slice(None))
    assert generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0) == alone


def test_the_head_sees_open_slots_only_and_the_prompt_carries_the_window(model):
    seen = forwards_seen(model)
    (row,) = generate(model, [PROMPTS[4]], max_new_tokens=40, window_size=6, entropy_threshold=1.0)
    assert len(seen) == row.forwards, "a forward that is not counted"
    assert seen[0] == ((1, 40 + 6), 6)
    assert all(shape[1] <= 12 and head <= 6 for shape, head in seen[1:])
    assert {shape[1] for shape, _ in seen[1:]} > {6}, "windows of several widths"


@pytest.mark.few(1)
def test_finished_rows_leave_the_batch(model):
    alone = [generate(model, [prompt], max_new_tokens=40, entropy_threshold=1.0)[0] for prompt in PROMPTS]
    ends = sorted(row.forwards for row in alone)
    assert ends[0] < ends[-1], "rows that end at different times"
    seen = forwards_seen(model)
    assert generate(model, PROMPTS, max_new_tokens=40, entropy_threshold=1.0) == alone
    expected, size = [], len(PROMPTS)
    for k in range(ends[-1]):
        num_alive = sum(row.forwards > k for row in alone)
        if 2 * num_alive <= size:
            size = num_alive
        expected.append(size)
    assert [shape[0] for shape, _ in seen] == expected
    assert len(set(expected)) > 1, "no row left"


@pytest.mark.few(1)
def test_no_step_copies_the_cache(model, monkeypatch):
    addresses, reads = [], []
    begin = RowCache.begin_forward

    def watch(self, *args):
        addresses.extend(layer.keys.data_ptr() for layer in self.layers[:1])
        mask = begin(self, *args)
        reads.append((self.place.live, self.layers[0].keys.shape[2] if self.layers else self.place.live))
        return mask

    monkeypatch.setattr(RowCache, "begin_forward", watch)
    generate(model, [PROMPTS[2]], max_new_tokens=200, eos_token_id=None, entropy_threshold=None, window_size=4)
    moves = sum(a != b for a, b in zip(addresses, addresses[1:], strict=False))
    assert len(addresses) == 199
    assert moves <= math.log2(220 / 16)
    assert reads[-1][0] == 12 + 196 + 8 - 4, "the forward reads the live entries only"
    assert max(capacity for _, capacity in reads) <= 12 + 200 + 8


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"do_sample": True, "top_k": 5},
        {"entropy_threshold": 1.0, "eos_token_id": list(range(3, 40))},
        {"decoding": "verified"},
        {"decoding": "verified", "do_sample": True, "top_k": 5},
    ],
    ids=str,
)
def test_one_look_of_the_host_per_step(model, monkeypatch, arguments):
    """No operation that waits for the device but the look at the status, once per forward."""
    looks = {"status": 0, "other": []}
    read = decoding_run.read_status

    def counted(*arguments):
        looks["status"] += 1
        return read(*arguments)

    monkeypatch.setattr(decoding_run, "read_status", counted)
    counts = []
    arguments = {"entropy_threshold": 0.0, "eos_token_id": None, **arguments}
    for max_new_tokens in (8, 40):
        looks.update(status=0, other=[])
        with Waits(looks["other"]):
            rows = generate(model, PROMPTS, max_new_tokens=max_new_tokens, **arguments)
        assert looks["status"] == max(row.forwards for row in rows)
        counts.append((looks["status"], len(looks["other"])))
    if arguments["eos_token_id"] is not None:
        assert len({row.forwards for row in rows}) > 1, "no row leaves early"
    assert counts[0][0] < counts[1][0]
    assert counts[0][1] == counts[1][1], f"looks grow with the forwards: {counts}"


@pytest.mark.few(1)
def test_eight_threads_on_one_model(model):
    expected = [generate(model, [prompt], max_new_tokens=24, entropy_threshold=1.0) for prompt in PROMPTS]
    got = [None] * 8

    def work(k):
        got[k] = [generate(model, [PROMPTS[(k + j) % 5]], max_new_tokens=24, entropy_threshold=1.0) for j in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[expected[(k + j) % 5] for j in range(5)] for k in range(8)]


@pytest.mark.slow
def test_memory_does_not_grow(model):
    import psutil

    process = psutil.Process()
    for i in range(1200):
        if i == 200:
            before = process.memory_info().rss
        k = i % 5
        generate(model, PROMPTS[: 1 + k], max_new_tokens=4 + 3 * (i % 7), entropy_threshold=1.0, window_size=4 + i % 9)
    assert process.memory_info().rss - before < 5e6


def test_rows_leave_although_a_forward_has_recorded_hidden_states(model):
    """It leaves transformers' hooks on the modules."""
    model(torch.tensor([PROMPTS[1]]), output_hidden_states=True)
    seen = forwards_seen(model)
    generate(model, PROMPTS, max_new_tokens=40, entropy_threshold=1.0)
    assert min(shape[0] for shape, *_ in seen) < len(PROMPTS)
