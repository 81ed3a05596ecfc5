"""Weights that are not numbers are named, in every decoding, and nothing else is blamed."""

import pytest
import torch
from helpers import CHECKPOINTS, PROMPTS, load

from wedlm import fuse
from wedlm.generation.first_scores import FirstScores
from wedlm.generation.parameters import DECODINGS
from wedlm.generation.support import NoTokenError


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_broken_weight_is_named(decoding, value, fused):
    model = load(CHECKPOINTS / "q3")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] = value
    if fused:
        fuse(model)
    with pytest.raises(NoTokenError, match=r"The weight model\.layers\.1\.mlp\.up_proj\.weight holds values"):
        model.generate(torch.tensor([PROMPTS[1]]), decoding=decoding, max_new_tokens=4)


def test_scores_that_a_processor_broke_are_not_the_weights_fault():
    model = load(CHECKPOINTS / "q3")

    def break_scores(ids, scores):
        return scores * float("nan")

    with pytest.raises(NoTokenError, match="suppress_tokens and the other logits processors"):
        model.generate(torch.tensor([PROMPTS[1]]), logits_processor=[break_scores], max_new_tokens=4)


def test_the_first_scores_alone_are_looked_at():
    look = FirstScores()
    scores = torch.tensor([[0.0, -torch.inf]])
    assert look(None, scores) is scores
    assert look(None, scores * torch.nan).isnan().any()
    with pytest.raises(NoTokenError, match="The scores of row 1 at its first new token are not a number"):
        FirstScores()(None, torch.tensor([[0.0, 0.0], [0.0, torch.nan]]))
