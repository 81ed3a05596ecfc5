"""The loss of chosen queries against the formula, in forward and backward."""

import pytest
import torch
from helpers import load, random_tokens

from wedlm.training import target_loss


def inputs(batch=2, queries=11):
    input_ids = random_tokens(batch, queries)
    targets = random_tokens(batch, queries, seed=1)
    targets[torch.rand(batch, queries, generator=torch.Generator().manual_seed(2)) < 0.4] = -100
    weights = torch.rand(batch, queries, generator=torch.Generator().manual_seed(3)) * (targets != -100)
    return {"input_ids": input_ids, "targets": targets, "target_weights": weights}


def slow_loss(model, input_ids, targets, target_weights):
    """The formula, from the logits of all queries."""
    log_probabilities = model(input_ids=input_ids).logits.log_softmax(-1)
    losses = torch.zeros(targets.shape)
    for i, j in (targets != -100).nonzero().tolist():
        losses[i, j] = -log_probabilities[i, j, targets[i, j]]
    return (target_weights * losses).sum(), losses.detach()


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("queries_per_chunk", [3, 1024])
def test_loss_and_gradients_are_those_of_all_logits(checkpoint, monkeypatch, queries_per_chunk):
    monkeypatch.setattr(target_loss, "QUERIES_PER_CHUNK", queries_per_chunk)
    model, other = load(checkpoint).train(), load(checkpoint).train()
    output = model(**inputs())
    loss, losses = slow_loss(other, **inputs())
    torch.testing.assert_close(output.loss, loss)
    torch.testing.assert_close(output.target_losses, losses, atol=1e-5, rtol=1e-5)
    assert not output.target_losses.requires_grad and output.logits is None
    predicted = other(input_ids=inputs()["input_ids"]).logits.argmax(-1)
    assert torch.equal(output.target_hits, predicted == inputs()["targets"])
    output.loss.backward()
    loss.backward()
    torch.testing.assert_close(gradients(model), gradients(other), atol=1e-4, rtol=1e-4)


def test_only_queries_with_a_target_reach_the_head(model, monkeypatch):
    monkeypatch.setattr(target_loss, "QUERIES_PER_CHUNK", 5)
    seen, forward = [], model.lm_head.forward
    model.lm_head.forward = lambda queries: seen.append(len(queries)) or forward(queries)
    model(**inputs())
    count = int((inputs()["targets"] != -100).sum())
    assert seen == [5] * (count // 5) + [count % 5] * (count % 5 > 0)


def test_hooks_of_the_head_run_once(monkeypatch):
    """However many chunks there are, as FSDP needs; tests of training show it with FSDP."""
    monkeypatch.setattr(target_loss, "QUERIES_PER_CHUNK", 5)
    head, calls = torch.nn.Linear(4, 8), []
    head.register_forward_hook(lambda *_: calls.append(1))
    targets = torch.zeros(3, 7, dtype=torch.long)
    target_loss.target_loss(head, torch.zeros(3, 7, 4), targets, torch.ones(3, 7))
    assert len(calls) == 1


@pytest.mark.parametrize("autocast", [False, True])
def test_a_batch_without_targets_has_a_loss_of_0_and_a_gradient_everywhere(model, autocast):
    values = inputs()
    values["targets"].fill_(-100)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model.train()(**values)
    assert output.loss.item() == 0 and not output.target_hits.any() and not output.target_losses.any()
    output.loss.backward()
    assert all(grad is not None and not grad.any() for grad in gradients(model).values())


@pytest.mark.parametrize("change", [{"target_weights": None}, {"labels": random_tokens(2, 11)}])
def test_half_of_the_arguments_and_labels_beside_them_are_refused(model, change):
    with pytest.raises(ValueError, match="targets, teachers, target_weights and labels: .*; leave out the others"):
        model(**{**inputs(), **change})
