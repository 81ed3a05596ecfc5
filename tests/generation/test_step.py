"""One step: slots that no token can fill."""

import pytest
import torch
from decoded import generate
from helpers import (
    PROMPTS,
)


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


def test_logits_of_minus_infinity_change_nothing_but_their_token(model):
    """As in a padded vocabulary; its entropy is that of the other tokens."""
    hook = lambda value: lambda module, args, out: out.index_fill(-1, torch.tensor([7]), value)  # noqa: E731
    decoded = []
    for value in (-torch.inf, -1e30):
        handle = model.lm_head.register_forward_hook(hook(value))
        decoded.append(generate(model, PROMPTS, max_new_tokens=20, entropy_threshold=2.0))
        handle.remove()
    assert decoded[0] == decoded[1]
    assert max(row.forwards for row in decoded[0]) < 20


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
