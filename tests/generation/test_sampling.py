"""Drawn tokens follow the distribution, and scores are read a few slots at a time."""

import pytest
import torch
from decoded import PARALLEL, SPECIAL, STATIC, run
from helpers import CHECKPOINTS, PROMPTS, left_padded, load
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.generation import sampling
from wedlm.generation.sampling import SlotNoise, processed


@pytest.mark.parametrize("decoding", PARALLEL)
def test_scores_read_a_few_slots_at_a_time_are_the_same(decoding, monkeypatch):
    model, sizes = load(CHECKPOINTS / "q3"), []
    arguments = {"decoding": decoding, "top_k": 7, "temperature": 1.5}
    outputs = []

    def noted(logits, processors):
        sizes.append(logits.numel())
        return processed(logits, processors)

    monkeypatch.setattr(sampling, "processed", noted)
    for most in (2**24, 3 * 160 + 1, 1):
        monkeypatch.setattr(sampling, "MOST_SCORES", most)
        sizes.clear()
        for do_sample in (False, True):
            torch.manual_seed(0)
            outputs.append(run(model, do_sample=do_sample, **arguments))
        assert max(sizes) <= max(most, 160), "scores of other slots are in float32, too"
    for i, output in enumerate(outputs):
        assert torch.equal(output.sequences, outputs[i % 2].sequences)
        assert torch.equal(output.forwards, outputs[i % 2].forwards)


def test_a_draft_is_chosen_if_it_is_possible_and_close_to_the_best():
    lowest, nan = -torch.inf, torch.nan
    cases = [  # scores, draft, margin, token
        ([0.0, 1.0, 0.5], 0, 1.0, 0),
        ([0.0, 1.0, 0.5], 0, 0.9, 1),
        ([0.0, 1.0, 0.5], 1, 0.1, 1),
        ([0.0, 1.0, 0.5], -1, 9.0, 1),
        ([9.0, 1.0, lowest], -1, 9.0, 0),
        ([0.0, 1.0, lowest], 2, 744.0, 1),
        ([1.0, 1.0, 0.5], 1, 0.1, 1),
        ([lowest, lowest, lowest], 2, 1.0, 0),
        ([0.0, nan, 0.5], 2, 9.0, 1),
    ]
    for scores, draft, margin, token in cases:
        chosen = sampling.draft_or_best(torch.tensor([scores]), torch.tensor([draft]), torch.tensor(margin))
        assert chosen.tolist() == [token], (scores, draft, margin)


MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides
ARGUMENTS = {**SPECIAL, "do_sample": True, "max_new_tokens": 20}
SAMPLERS = {
    "plain": {"top_k": 0},
    "hot": {"top_k": 0, "temperature": 2.5},
    "top-p": {"top_p": 0.7, "temperature": 1.5},
    "a processor that reads": {"top_k": 5, "repetition_penalty": 1.4},
    "a criterion that reads": {"top_k": 9, "min_new_tokens": 4, "output_scores": True},
}
FORWARDS = {
    "window": st.integers(1, 20).map(lambda size: {"window_size": size}),
    "look-up": st.integers(1, 9).map(lambda number: {"prompt_lookup_num_tokens": number}),
    "static": st.just(STATIC),
    "without a cache": st.just({"use_cache": False}),
}


def sampled(prompts, seed, **arguments):
    """The texts of two calls behind one seed, and a number drawn behind them."""
    torch.manual_seed(seed)
    texts = [MODEL.generate(**left_padded(prompts), **{**ARGUMENTS, **arguments}).tolist() for _ in range(2)]
    return *texts, torch.rand(1).item()


@given(st.sampled_from(range(len(PROMPTS))), st.sampled_from(list(SAMPLERS)), st.integers(0, 2**32), st.data())
@property_settings(60, deadline=None)
def test_a_seed_gives_the_text_of_transformers_own_loop(row, sampler, seed, data):
    more = data.draw(st.sampled_from(list(FORWARDS)).flatmap(FORWARDS.get), "forwards")
    arguments = SAMPLERS[sampler]
    expected = sampled([PROMPTS[row]], seed, decoding="autoregressive", **arguments)
    assert sampled([PROMPTS[row]], seed, decoding="verified", **arguments, **more) == expected


@given(st.sampled_from(list(SAMPLERS)), st.integers(0, 2**32), st.data())
@property_settings(30, deadline=None)
def test_a_seed_fixes_the_texts_of_a_batch(sampler, seed, data):
    more = data.draw(st.sampled_from(list(FORWARDS)).flatmap(FORWARDS.get), "forwards")
    arguments = {"decoding": "verified", **SAMPLERS[sampler]}
    expected = sampled(PROMPTS, seed, window_size=1, **arguments)
    assert sampled(PROMPTS, seed, **arguments, **more) == expected


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified"])
def test_a_row_does_not_depend_on_the_others(decoding):
    arguments = {"decoding": decoding, "top_k": 20, "eos_token_id": None}
    one, other = [PROMPTS[0], PROMPTS[1], PROMPTS[2]], [PROMPTS[3], PROMPTS[1], PROMPTS[4]]
    texts = [[row[-20:] for row in sampled(prompts, 3, **arguments)[0]] for prompts in (one, other)]
    assert texts[0][1] == texts[1][1] and texts[0][0] != texts[1][0]


@given(st.integers(1, 3), st.integers(2, 7), st.integers(0, 99), st.data())
@property_settings(60, deadline=None)
def test_noise_is_that_of_multinomial_for_all_rows_at_once(num_rows, num_slots, seed, data):
    """However far each row is at a time; a row that falls behind finds its noise, too."""
    vocab_size, limit = 5, 12
    probabilities = torch.rand(limit, num_rows, vocab_size, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(seed)
    expected = torch.cat([torch.multinomial(slot, 1) for slot in probabilities], dim=-1)  # [rows, slots]
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    noise = SlotNoise(num_rows, num_slots, vocab_size, torch.device("cpu"))
    starts, rows, drawn = [0] * num_rows, list(range(num_rows)), 0
    for _ in range(5):
        widths = [data.draw(st.integers(0, num_slots - 1)) for _ in rows]
        noise.draw(rows, starts, widths, [limit] * num_rows)
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            slots = torch.arange(start, min(start + width + 1, limit))[None]
            scores = probabilities[slots[0], row].log() + noise.at(noise.index_of(torch.tensor([row]), slots)[0])
            assert torch.equal(scores.argmax(-1), expected[row, slots[0]])
            drawn = max(drawn, slots.shape[1] + start)
        starts = [
            min(start + data.draw(st.integers(0, width + 1)), limit - 1)
            for start, width in zip(starts, widths, strict=True)
        ]
    noise.give_back(drawn)
    for slot in range(drawn, limit):
        assert torch.equal(torch.multinomial(probabilities[slot], 1)[:, 0], expected[:, slot])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_row_with_its_own_generator_draws_for_itself():
    torch.manual_seed(7)
    expected = SlotNoise(1, 6, 5, torch.device("cpu"))
    expected.draw([0], [0], [5], [6])
    noise = SlotNoise(1, 6, 5, torch.device("cpu"), torch.Generator().manual_seed(7))
    state = torch.get_rng_state()
    noise.draw([0], [0], [2], [6])
    noise.draw([0], [2], [3], [6])
    assert torch.equal(noise.values, expected.values) and torch.equal(torch.get_rng_state(), state)
