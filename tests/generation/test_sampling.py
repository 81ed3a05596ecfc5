"""Drawn tokens follow the distribution, and scores are read a few slots at a time."""

import pytest
import torch
from decoded import PARALLEL, SPECIAL, STATIC, run
from helpers import CHECKPOINTS, PROMPTS, left_padded, load
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.generation import sampling, streaming, verified
from wedlm.generation.sampling import SlotNoise, processed


@pytest.mark.parametrize("decoding", PARALLEL)
def test_scores_read_a_few_slots_at_a_time_are_the_same(decoding, monkeypatch):
    model, sizes = load(CHECKPOINTS / "q3"), []
    arguments = {"decoding": decoding, "top_k": 7, "temperature": 1.5}
    outputs = []

    def noted(logits, processors):
        sizes.append(logits.numel())
        return processed(logits, processors)

    for module in (streaming, verified):
        monkeypatch.setattr(module, "processed", noted)
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


def test_two_rows_of_one_prompt_differ():
    texts, *_ = sampled([PROMPTS[0], PROMPTS[0]], 0, top_k=0, temperature=3.0, decoding="verified")
    assert texts[0] != texts[1]


@given(st.integers(1, 3), st.integers(1, 7), st.integers(0, 99), st.data())
@property_settings(60, deadline=None)
def test_noise_is_drawn_in_the_order_of_the_slots(num_rows, num_slots, seed, data):
    """However far it is drawn at a time: as if all of it were drawn slot by slot at once."""
    vocab_size, limit = 5, 12
    torch.manual_seed(seed)
    expected = SlotNoise(num_rows, limit, vocab_size, torch.device("cpu"))
    expected.draw(list(range(num_rows)), [limit] * num_rows)
    torch.manual_seed(seed)
    noise, ends = SlotNoise(num_rows, num_slots, vocab_size, torch.device("cpu")), [0] * num_rows
    for _ in range(4):
        ends = [data.draw(st.integers(end, min(limit, end + num_slots))) for end in ends]
        noise.draw(list(range(num_rows)), ends)
        for row, end in enumerate(ends):
            slots = torch.arange(max(0, end - num_slots), end)[None]
            places = noise.places(torch.tensor([row]), slots)[0]
            assert torch.equal(noise.at(places), expected.values[row, slots[0]])


def test_scores_of_half_precision_are_drawn_from_evenly():
    torch.manual_seed(0)
    noise = SlotNoise(1, 200, 20_000, torch.device("cpu"))
    noise.draw([0], [200])
    tokens, _ = sampling.choose_tokens(torch.zeros(200, 20_000, dtype=torch.float16), noise.values[0])
    assert 8_500 < tokens.float().mean() < 11_500


def test_noise_is_that_of_multinomial():
    probabilities = torch.rand(1, 50).softmax(-1)
    for seed in range(200):
        torch.manual_seed(seed)
        expected = torch.multinomial(probabilities, 1)
        torch.manual_seed(seed)
        noise = SlotNoise(1, 1, 50, torch.device("cpu"))
        noise.draw([0], [1])
        assert (probabilities.log() + noise.values[0]).argmax() == expected
