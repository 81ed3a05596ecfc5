"""Streaming and blockwise decoding against the slow reference and the recorded runs."""

import doctest
import math

import pytest
import torch
from decoded import MODELS, agree, generate, recorded, settings_of
from helpers import CHECKPOINTS, DECODE, EOS, MASK, PROMPTS, load, logits_of
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import decode
from tiers import property_settings

from wedlm.generation import streaming
from wedlm.generation.streaming import entropy_of, select_slots


@pytest.mark.few(3)
@pytest.mark.parametrize("attention, cache, every", [("eager", None, 16), ("sdpa", None, 8), ("sdpa", "static", 16)])
@pytest.mark.parametrize("decoding", ["streaming", "blockwise"])
def test_recorded_runs(attention, cache, every, decoding):
    """Alone, and every other one as a row of ragged batches of 2, 5 and 8; in rarer ways not all of them."""
    model = {name: load(CHECKPOINTS / name, attn_implementation=attention) for name in ("q25", "q3")}
    runs = [run for run in DECODE["runs"] if decoding == "streaming" or "blockwise_ids" in run]
    assert len(runs) > 20
    for i, run in enumerate(runs[1 :: every if decoding == "streaming" else every // 4]):  # which are fewer
        expected = recorded(run, decoding)
        arguments = {"decoding": decoding, "cache_implementation": cache, **settings_of(run)}
        prompt = DECODE["prompts"][run["prompt"]]
        (alone,) = generate(model[run["checkpoint"]], [prompt], **arguments)
        assert agree(alone, expected), run
        if i % 2 == 0:
            continue
        others = [DECODE["prompts"][(run["prompt"] + k) % 5] for k in range(1, (2, 5, 8)[i % 3])]
        in_a_batch = generate(model[run["checkpoint"]], [prompt, *others], **arguments)
        assert agree(in_a_batch[0], expected), run


@pytest.mark.parametrize("name", ["q25", "q3"])
def test_the_reference_reproduces_the_recorded_runs(name):
    """In float64, where no rounding decides: so the cases below may be compared with it."""
    forward = logits_of(load(CHECKPOINTS / name).double())
    for run in DECODE["runs"][::5]:
        if run["checkpoint"] == name:
            for decoding in ("streaming", "blockwise") if "blockwise_ids" in run else ("streaming",):
                got = decode(
                    forward, DECODE["prompts"][run["prompt"]], mask_token_id=MASK, eos_token_ids=[EOS],
                    decoding=decoding, **settings_of(run),
                )  # fmt: skip
                expected = recorded(run, decoding)
                counts = expected.ids, expected.forwards, expected.window_queries
                assert (got.ids, got.forwards, got.window_queries) == counts
                if decoding == "streaming" and "steps" in run:
                    assert got.steps == run["steps"]


@given(st.data())
@property_settings(80, deadline=None, derandomize=True)
def test_any_batch_equals_the_reference_row_by_row(data):
    model = MODELS[data.draw(st.sampled_from(["q25", "q3"]), "model")]
    tokens = st.integers(3, 158)
    prompts = data.draw(st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=5), "prompts")
    arguments = {
        "max_new_tokens": data.draw(st.integers(1, 24), "max_new_tokens"),
        "window_size": data.draw(st.integers(1, 18), "window_size"),
        "entropy_threshold": data.draw(st.sampled_from([None, 0.0, 0.05, 0.4, 1.0, 2.0, 4.0, 100.0]), "threshold"),
        "distance_penalty": data.draw(st.sampled_from([0.0, 0.02, 0.1, 0.5]), "penalty"),
        "decoding": data.draw(st.sampled_from(["streaming", "blockwise"]), "decoding"),
    }
    # Tokens that the text is likely to hold, so that rows end early and at different times.
    end_tokens = data.draw(st.lists(tokens, max_size=8, unique=True), "end tokens")
    if data.draw(st.booleans(), "end inside the text"):
        text = decode(logits_of(model), prompts[0], mask_token_id=MASK, eos_token_ids=[], **arguments).ids
        end_tokens.append(data.draw(st.sampled_from(text), "end token"))
    cache = data.draw(st.sampled_from([None, "static"]), "cache")
    got = generate(model, prompts, **arguments, eos_token_id=end_tokens or None, cache_implementation=cache)
    for row, prompt in zip(got, prompts, strict=True):
        expected = decode(logits_of(model), prompt, mask_token_id=MASK, eos_token_ids=end_tokens, **arguments)
        assert agree(row, expected) or expected.margin < 1e-4, (row, expected)


def test_any_window_size_is_as_good_as_the_largest_useful_one(model):
    expected = generate(model, PROMPTS, max_new_tokens=9, window_size=9)
    for window_size in (10, 10**6, 10**20):
        assert generate(model, PROMPTS, max_new_tokens=9, window_size=window_size) == expected


def test_entropy_is_in_nats_over_the_whole_vocabulary():
    assert entropy_of(torch.zeros(3, 7, 50)).allclose(torch.full((3, 7), math.log(50)))
    assert entropy_of(torch.tensor([0.0, math.log(3)])).item() == pytest.approx(
        -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    )
    assert entropy_of(torch.tensor([0.0, -torch.inf, 0.0]).bfloat16()).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "entropy, slots, threshold, penalty, expected",
    [
        ([0.1, 0.9, 0.2, 0.3], (0, 1, 2, 3), 0.5, 0.0, [1, 0, 1, 1]),
        ([0.5, 0.25, 0.5, 0.75], (0, 1, 2, 3), 0.5, 0.0, [0, 1, 0, 0]),  # the threshold itself is not below
        ([0.5, 0.5, 0.75, 0.5], (0, 1, 2, 3), 0.5, 0.0, [1, 0, 0, 0]),  # the first on ties
        ([0.1, 0.3, 0.05, 0.3], (0, 1, 2, 3), None, 0.0, [0, 0, 1, 0]),
        ([0.2, 0.2, 0.2, 0.2], (7, 8, 10, 12), 0.5, 0.1, [1, 1, 0, 0]),
        ([0.2, 0.1, 0.2, 0.2], (7, 8, 10, 12), None, 0.2, [1, 0, 0, 0]),
    ],
)
def test_slots_below_the_threshold_are_taken_or_else_the_least(entropy, slots, threshold, penalty, expected):
    """Of the open ones: those of a second row are not."""
    is_open = torch.tensor([[True] * 4, [False] * 4])
    got = select_slots(torch.tensor([entropy] * 2), torch.tensor([slots] * 2), is_open, threshold, penalty)
    assert got.int().tolist() == [expected, [0] * 4]


def test_the_docstrings_example():
    results = doctest.testmod(streaming, extraglobs={"torch": torch})
    assert results.attempted == 2 and results.failed == 0
