"""The loop of one call: which rows, queries and entries its forwards have, and what they cost."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from decoded import forwards_seen, generate
from helpers import CHECKPOINTS, PAD, PROMPTS, Waits, left_padded, load
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from wedlm.generation.decoding import step
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sequences import Status
from wedlm.generation.transformers_internals import CACHE


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified"])
def test_the_cache_equals_a_fresh_prefill_after_every_step(model, decoding, monkeypatch):
    checked = 0

    def step_and_look(forward, settings, state, queries, cache, *more):
        nonlocal checked
        state, status = step(forward, settings, state, queries, cache, *more)
        sequences = state.sequences
        assert torch.equal(cache.lengths, sequences.prompt_lengths + sequences.num_committed)
        for b, row in enumerate(sequences.number.tolist()):
            fresh = DynamicCache()
            committed = sequences.tokens[b, : sequences.num_committed[b]].tolist()
            model(torch.tensor([PROMPTS[row] + committed]), **{CACHE: fresh})
            for layer, other in zip(cache.layers, fresh.layers, strict=True):
                for got, expected in ((layer.keys, other.keys), (layer.values, other.values)):
                    torch.testing.assert_close(got[b, :, : cache.lengths[b]], expected[0], atol=1e-5, rtol=1e-4)
                    checked += 1
        return state, status

    monkeypatch.setattr("wedlm.generation.decoding.step", step_and_look)
    generate(model, PROMPTS[:3], max_new_tokens=24, entropy_threshold=1.0, window_size=4, decoding=decoding)
    assert checked > 100


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_rows_stay_where_a_hook_may_count_on_them(model, kind):
    """As one that steers each row by a vector of its own."""
    seen = forwards_seen(model)
    getattr(model.model.layers[1], kind)(lambda *_: None)
    rows = generate(model, PROMPTS, max_new_tokens=40, entropy_threshold=1.0)
    assert {shape[0] for shape, _ in seen} == {5} and len({row.forwards for row in rows}) > 1


def test_the_head_sees_open_slots_only_and_the_prompt_carries_the_window(model):
    seen = forwards_seen(model)
    (row,) = generate(model, [PROMPTS[4]], max_new_tokens=40, window_size=6, entropy_threshold=1.0)
    assert len(seen) == row.forwards, "a forward that is not counted"
    assert seen[0] == ((1, 40 + 6), 6)
    assert all(shape[1] <= 12 and head <= 6 for shape, head in seen[1:])
    assert {shape[1] for shape, _ in seen[1:]} > {6}, "windows of several widths"


def test_finished_rows_leave_the_batch(model):
    """Also where a forward that has recorded hidden states has left transformers' hooks on the modules."""
    model(torch.tensor([PROMPTS[1]]), output_hidden_states=True)
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


def test_no_step_copies_the_cache(model, monkeypatch):
    addresses, lengths, capacities, commit = [], [], [], RowCache.commit

    def watch(self, num_kept):
        addresses.append(self.layers[0].keys.data_ptr())
        lengths.append(self.current.valid_length)
        capacities.append(self.layers[0].keys.shape[2])
        commit(self, num_kept)

    monkeypatch.setattr(RowCache, "commit", watch)
    generate(model, [PROMPTS[2]], max_new_tokens=200, eos_token_id=None, entropy_threshold=None, window_size=4)
    assert len(addresses) == 200 and sum(a != b for a, b in pairwise(addresses)) <= math.log2(220 / 16)
    assert lengths[-1] == 12 + 196 + 8 - 4, "the forward reads the live entries only"
    assert max(capacities) <= 12 + 200 + 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"entropy_threshold": 1.0, "eos_token_id": list(range(3, 40))},
        {"do_sample": True, "top_k": 5},
        {"decoding": "verified", "do_sample": True, "top_k": 5},
    ],
    ids=str,
)
def test_one_wait_of_the_host_per_step(model, monkeypatch, arguments):
    """No operation that waits for the device but reading the status, once per forward."""
    waits, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (waits.append("tolist"), tolist(tensor))[1])
    others, forwards = [], []
    arguments = {"entropy_threshold": 0.0, "eos_token_id": None, **arguments}
    for max_new_tokens in (8, 40):
        waits.clear()
        with Waits(waits):
            rows = generate(model, PROMPTS, max_new_tokens=max_new_tokens, **arguments)
        forwards.append(max(row.forwards for row in rows))
        others.append(len(waits) - forwards[-1])
    assert forwards[0] < forwards[1] and others[0] == others[1], "waits grow with the forwards"


def test_eight_threads_on_one_model(model):
    def text(prompt):
        return generate(model, [prompt], max_new_tokens=24, entropy_threshold=1.0)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(text, PROMPTS * 3)] == [text(prompt) for prompt in PROMPTS] * 3


@pytest.mark.parametrize("do_sample", [False, True])
def test_when_no_token_can_be_chosen_row_and_position_are_named(model, do_sample):
    everything = list(range(160))
    arguments = {"max_new_tokens": 4, "window_size": 1, "do_sample": do_sample}
    message = r"No token has a finite score in row 0 at position 12: .* suppress_tokens .*; loosen them"
    with pytest.raises(ValueError, match=message):
        generate(model, PROMPTS[2:4], **arguments, suppress_tokens=everything)
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(0, torch.tensor([1]), torch.nan))
    with pytest.raises(
        ValueError, match="No token has a finite score in row 1 at position 23: the logits are not finite"
    ):
        generate(model, PROMPTS[2:4], **arguments)


@pytest.mark.parametrize("decoding", ["streaming", "blockwise"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_a_slot_that_nothing_can_fill_yet_stays_open(model, decoding, cache):
    """The scores of the window's last slot are NaN in the first forward, which selects the slots before it."""
    arguments = {"max_new_tokens": 4, "window_size": 4, "entropy_threshold": 100.0, "eos_token_id": None}
    arguments |= {"decoding": decoding, "cache_implementation": cache}
    (expected,) = generate(model, [PROMPTS[2]], **arguments)
    widths = []

    def spoil(module, args, scores):
        widths.append(scores.shape[1])
        return scores.index_fill(1, torch.tensor([3]), torch.nan) if len(widths) == 1 else scores

    model.lm_head.register_forward_hook(spoil)
    (got,) = generate(model, [PROMPTS[2]], **arguments)
    assert widths[0] == 4
    assert got.ids[:3] == expected.ids[:3] and (expected.forwards, got.forwards) == (1, 2)


@pytest.mark.parametrize("pad_token_id", [PAD, 11])
def test_autoregressive_decoding_counts_a_forward_per_token(model, pad_token_id):
    inputs = left_padded(PROMPTS)
    arguments = {"decoding": "autoregressive", "max_new_tokens": 12, "return_dict_in_generate": True}
    free = model.generate(**inputs, **arguments, pad_token_id=PAD, eos_token_id=None).sequences[:, 40:]
    end_token = free[0, 4].item()
    ended = model.generate(**inputs, **arguments, pad_token_id=pad_token_id, eos_token_id=[end_token, 11])
    expected = [next((i + 1 for i, token in enumerate(row) if token in (end_token, 11)), 12) for row in free.tolist()]
    assert min(expected) < 12
    assert ended.forwards.tolist() == expected
    assert ended.tokens_per_forward.tolist() == ended.prefix_cacheability.tolist() == [1.0] * 5


class Operators(TorchDispatchMode):
    """Counts operators outside the model's forward, views left out."""

    def __init__(self, model):
        super().__init__()
        self.number, self.is_counting = 0, True
        model.register_forward_pre_hook(lambda *_: setattr(self, "is_counting", False))
        model.register_forward_hook(lambda *_: setattr(self, "is_counting", True))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = [each.alias_info for each in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returns)
        self.number += self.is_counting and not is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "arguments, most",
    [
        ({"decoding": "verified"}, 180),
        ({"decoding": "verified", "prompt_lookup_num_tokens": 0}, 160),
        ({"decoding": "streaming"}, 87),
        ({"decoding": "blockwise"}, 90),
    ],
    ids=str,
)
def test_a_step_has_few_operators(arguments, most, monkeypatch):
    """Each of them is the launch of a kernel on a GPU. They are all that lies between two reads of the status."""
    model, numbers, read = load(CHECKPOINTS / "q3"), [], Status.read
    operators = Operators(model)
    monkeypatch.setattr(Status, "read", lambda *given: (numbers.append(operators.number), read(*given))[1])
    with operators:
        generate(model, [PROMPTS[2]], max_new_tokens=20, eos_token_id=None, **arguments)
    steps = [after - before for before, after in pairwise(numbers)]
    assert len(steps) > 2 and max(steps) <= most, steps
