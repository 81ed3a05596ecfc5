"""The demo model's optimizer is restored whole."""

import copy

import pytest
import torch

from wedlm.demo.model import MuonAndAdamW, random_model
from wedlm.demo.tokenizer import demo_tokenizer


@pytest.mark.full
def test_the_optimizer_goes_on_where_it_stopped():
    """With the schedule, and for every weight."""

    def made():
        model = random_model(demo_tokenizer(), 128, 1)
        optimizer = MuonAndAdamW(model, 1e-2)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def step(model, optimizer, schedule, ids):
        model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    first, second = [5, 6, 7], [8, 7, 6]
    model, *rest = made()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    step(model, *rest, first)
    states = copy.deepcopy([part.state_dict() for part in (model, *rest)])
    step(model, *rest, second)
    after = dict(model.named_parameters())
    # (Of one layer and a text of three tokens every weight has a gradient but the vectors of other words.)
    assert [name for name in after if torch.equal(after[name], before[name])] == []

    resumed, *rest = made()
    for part, state in zip((resumed, *rest), states, strict=True):
        part.load_state_dict(state)
    step(resumed, *rest, second)
    for name, weight in resumed.named_parameters():
        assert torch.equal(weight, after[name]), name
    assert [group["lr"] for group in rest[0].param_groups] == pytest.approx([1e-2 / 3] * 2)
