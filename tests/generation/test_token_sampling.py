"""Drawn tokens follow the distribution, and scores are read a few slots at a time."""

import pytest
import torch
from decoded import PARALLEL, p_value, run, tiny_model
from helpers import (
    CHECKPOINTS,
    PROMPTS,
    left_padded,
    load,
)
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig

from wedlm import WeDLMForCausalLM
from wedlm.generation import token_sampling
from wedlm.generation.slot_noise import SlotNoise


def test_samples_follow_the_models_distribution():
    model, prompt = tiny_model(), torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        rows = torch.cat([prompt, torch.tensor([[11]])], dim=-1)
        logits = model(rows).logits[0, -1].index_fill(0, torch.tensor(11), -torch.inf)
    assert 0.5 < torch.distributions.Categorical(logits=logits).entropy() < 2.3
    torch.manual_seed(1)
    arguments = {"max_new_tokens": 1, "window_size": 1, "entropy_threshold": None, "do_sample": True, "top_k": 0}
    inputs = {"input_ids": prompt.expand(4000, -1), "attention_mask": torch.ones(4000, 4, dtype=torch.long)}
    for temperature, low, high in ((1.0, 1e-3, 1), (1.4, 0, 1e-6)):
        output = model.generate(**inputs, **arguments, temperature=temperature, eos_token_id=None, pad_token_id=0)
        counts = torch.bincount(output[:, -1], minlength=12).float()
        assert low <= p_value(counts, logits.softmax(-1)) <= high


def test_seeds_reproduce_and_warpers_restrict(model):
    prompts = left_padded(PROMPTS)
    arguments = {"max_new_tokens": 16, "do_sample": True, "pad_token_id": 0, "entropy_threshold": 2.0}

    def run(seed, **more):
        torch.manual_seed(seed)
        return model.generate(**prompts, **arguments, **more)

    assert torch.equal(run(0, temperature=3.0), run(0, temperature=3.0))
    assert not torch.equal(run(0, temperature=3.0), run(1, temperature=3.0))
    greedy = model.generate(**prompts, **{**arguments, "do_sample": False})
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_h": 1e-6}, {"temperature": 1e-4}):
        assert torch.equal(run(0, **narrow), greedy), narrow


@pytest.mark.few(3)
@pytest.mark.parametrize("decoding", PARALLEL)
@pytest.mark.parametrize("readers", [{}, {"output_scores": True}, {"repetition_penalty": 1.2}], ids=str)
def test_scores_read_a_few_slots_at_a_time_are_the_same(decoding, readers, monkeypatch):
    model = load(CHECKPOINTS / "q3")
    arguments = {"decoding": decoding, "top_k": 7, "temperature": 1.5, **readers}
    outputs = []
    for most in (2**24, 3 * 160 + 1, 1):
        monkeypatch.setattr(token_sampling, "MOST_SCORES", most)
        for do_sample in (False, True):
            torch.manual_seed(0)
            outputs.append(run(model, do_sample=do_sample, **arguments))
    for i, output in enumerate(outputs):
        assert torch.equal(output.sequences, outputs[i % 2].sequences)
        assert torch.equal(output.forwards, outputs[i % 2].forwards)


@pytest.mark.full
def test_no_float32_copy_of_all_scores(monkeypatch):
    """The model is in bfloat16. (The noise of drawn tokens is in float32, and there once.)"""
    torch.manual_seed(0)
    monkeypatch.setattr(token_sampling, "MOST_SCORES", 20_000)
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", vocab_size=5000, mask_token_id=4999)
    model = WeDLMForCausalLM(config).bfloat16().eval()
    sizes, noises = [], [torch.empty(0)]
    new_noise = SlotNoise.__init__

    def note_noise(noise, *arguments):
        counted = len(sizes)
        new_noise(noise, *arguments)
        noises.append(noise.values)
        del sizes[counted:]

    monkeypatch.setattr(SlotNoise, "__init__", note_noise)

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if torch.is_tensor(output) and output.dtype == torch.float32 and output.shape[-1:] == (5000,):
                if output.untyped_storage().data_ptr() != noises[-1].data_ptr():
                    sizes.append(output.numel())
            return output

    for decoding in PARALLEL:
        for sampling in ({}, {"do_sample": True, "top_p": 0.9}):
            with Sizes():
                run(model, decoding=decoding, eos_token_id=None, **sampling)
    assert 0 < max(sizes) <= 20_000 < len(PROMPTS) * 16 * 5000


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
        chosen = token_sampling.draft_or_best(torch.tensor([scores]), torch.tensor([draft]), torch.tensor(margin))
        assert chosen.tolist() == [token], (scores, draft, margin)
