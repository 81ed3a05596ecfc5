"""I-DLM's own plan of a step beside ours: the same text, and with its one branch of MASKs the same steps."""

from random import Random

import pytest
import torch
from decoded import steps_of_rows
from draft_models import fill, tiny_model
from helpers import EOS, MASK, PAD, left_padded, logits_of, stock_model
from peft import get_peft_model
from reference_decoder import decode_strided
from tiers import slow_but

import wedlm
from wedlm import DraftLoraConfig
from wedlm.generation import branches


def own_model(seed):
    model = tiny_model(seed=seed, mask_shift=True).double()
    return model, model, logits_of(model)


def stock_with_adapter(seed):
    model = stock_model(tiny_model(seed=seed)).double()
    model.lm_head.weight.data[MASK] = 0  # never the best token, as a row that no training has seen
    drafting = get_peft_model(model, DraftLoraConfig(r=4, lora_alpha=0.4, mask_token_id=MASK, mask_shift=True)).eval()
    fill(drafting, seed=seed)

    def forward(tokens, positions):
        ids = torch.tensor([tokens])
        with torch.no_grad(), model.get_input_embeddings().drafts_at(ids):
            return model(ids, position_ids=torch.tensor([positions]), use_cache=False).logits[0]

    return drafting, model, forward


def one_branch(chances, next_chance, num_open, *_):
    """A plan of all drafts, and MASKs behind all of them, as many as can draft for a slot."""
    size = chances.shape[1] + 1
    num_drafts = torch.minimum((chances > 0).sum(-1), num_open)
    num_masks = (num_open - num_drafts - 1).clamp(0, size - 1)
    return num_drafts[:, None] + num_masks[:, None] * (torch.arange(size + 1) > num_drafts[:, None])


@pytest.mark.few(4)
@pytest.mark.parametrize("stride", slow_but((2, 3, 6), range(2, 7)))
@pytest.mark.parametrize("kind", [own_model, stock_with_adapter], ids=lambda kind: kind.__name__)
def test_the_text_and_with_one_branch_the_steps_are_those_of_its_own_plan(monkeypatch, kind, stride):
    """Behind the last slot I-DLM has drafts and MASKs, too, and ours has none; no text and no step depends on them."""
    random, verified, accepted = Random(stride), torch.zeros(stride - 1), torch.zeros(stride - 1)
    for seed in range(4):
        model, base, forward = kind(seed)
        # The more the tokens have in common, the more of what MASKs guess is right.
        base.get_input_embeddings().weight.data[:, 0] = (1, 2, 4, 4)[seed]
        prompts = [[random.randint(3, 149) for _ in range(random.randint(1, 9))] for _ in range(2)]
        limit, end = (30, 30, 30, stride + 1)[seed], random.randint(3, 149)
        call = {**left_padded(prompts), "max_new_tokens": limit, "eos_token_id": [EOS, end], "pad_token_id": PAD}
        call |= {"custom_generate": wedlm.verified, "window_size": stride, "return_dict_in_generate": True}
        texts = model.generate(**call, query_cost=0).sequences
        with monkeypatch.context() as patch, steps_of_rows(2) as steps:
            patch.setattr(branches, "plan_step", one_branch)
            got = model.generate(**call, prompt_lookup_num_tokens=0)
        assert torch.equal(got.sequences, texts)
        for row, prompt in enumerate(prompts):
            slow = decode_strided(forward, prompt, limit, MASK, [EOS, end], stride)
            new, size = texts[row, call["input_ids"].shape[1] :].tolist(), min(stride, limit) - 1
            assert new == slow.ids + [PAD] * (len(new) - len(slow.ids))
            assert got.forwards[row] == slow.forwards
            assert got.verified_drafts[row].tolist() == slow.verified[:size]
            assert got.accepted_drafts[row].tolist() == slow.accepted[:size]
            for (drafts, _), step in zip(steps[row], slow.steps, strict=True):
                assert drafts == step["drafts"][: limit - step["known"]]
            verified, accepted = verified + torch.tensor(slow.verified), accepted + torch.tensor(slow.accepted)
    assert accepted[-1] > 0 and accepted.sum() < verified.sum(), "all drafts of a step are accepted, or not"
