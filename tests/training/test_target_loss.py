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


@pytest.mark.parametrize(("queries_per_chunk", "at_a_time"), [(3, 2), (1024, 16)])
def test_loss_and_gradients_are_those_of_all_logits(checkpoint, monkeypatch, queries_per_chunk, at_a_time):
    monkeypatch.setattr(target_loss, "QUERIES_PER_CHUNK", queries_per_chunk)
    monkeypatch.setattr(target_loss, "QUERIES_AT_A_TIME", at_a_time)
    model, other = load(checkpoint).double().train(), load(checkpoint).double().train()
    output = model(**inputs())
    loss, losses = slow_loss(other, **inputs())
    torch.testing.assert_close(output.loss, loss.float(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output.target_losses, losses, atol=1e-6, rtol=1e-6)
    assert not output.target_losses.requires_grad and output.logits is None
    predicted = other(input_ids=inputs()["input_ids"]).logits.argmax(-1)
    assert torch.equal(output.target_hits, predicted == inputs()["targets"])
    output.loss.backward()
    loss.backward()
    torch.testing.assert_close(gradients(model), gradients(other), atol=1e-6, rtol=1e-6)


class Capped(torch.nn.Module):
    """A head that is no plain layer, whose adapter alone trains."""

    def __init__(self):
        super().__init__()
        self.layer, self.down, self.up = (torch.nn.Linear(a, b, bias=False) for a, b in ((6, 11), (6, 2), (2, 11)))
        self.layer.requires_grad_(False)

    def forward(self, hidden_states):
        return 3 * torch.tanh(self.layer(hidden_states) + self.up(self.down(hidden_states)))


TARGETS = torch.tensor([[3, -100, 0, 10, 3], [-100, 7, 7, 2, -100]])


def replica():
    """As DataParallel makes them: its weights are copies, which are no parameters."""
    head = torch.nn.Linear(6, 11)._replicate_for_data_parallel()
    weights = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in (("weight", (11, 6)), ("bias", (11,)))}
    head._parameters.clear()
    for name, weight in weights.items():
        head.__dict__[name] = weight
    return head


HEADS = {"trained": lambda: torch.nn.Linear(6, 11), "adapter": Capped, "replica": replica}


@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_any_head_are_those_of_the_formula(head, monkeypatch):
    monkeypatch.setattr(target_loss, "QUERIES_PER_CHUNK", 3)
    torch.manual_seed(0)
    head, hidden_states, weights = HEADS[head](), torch.randn(2, 5, 6, requires_grad=True), torch.rand(2, 5)
    weights_of_head = [*head.parameters()] or [head.weight, head.bias]
    trained = [hidden_states, *(weight for weight in weights_of_head if weight.requires_grad)]
    loss, losses, hits = target_loss.target_loss(head, hidden_states, TARGETS, weights)
    got = torch.autograd.grad(3 * loss, trained)
    logits = head(hidden_states)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), reduction="none").view(2, 5)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-6, rtol=1e-6)
    assert torch.equal(hits, logits.argmax(-1) == TARGETS)
    of_formula = torch.autograd.grad(3 * (weights * expected).sum(), trained)
    for one, other in zip(got, of_formula, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_a_weight_at_a_query_without_a_target_counts_for_nothing():
    head, hidden_states = torch.nn.Linear(6, 11), torch.randn(2, 5, 6)
    losses = [target_loss.target_loss(head, hidden_states, TARGETS, torch.ones(2, 5) * of) for of in (1, TARGETS >= 0)]
    assert torch.equal(losses[0][0], losses[1][0])
    nothing = target_loss.target_loss(head, hidden_states, torch.full_like(TARGETS, -100), torch.ones(2, 5))
    assert nothing[0] == 0 and not nothing[1].any() and not nothing[2].any()


def test_gradients_of_float16_may_be_scaled():
    """As GradScaler does: the slopes by the logits are too small for float16 without the scale."""
    torch.manual_seed(0)
    head, hidden_states = torch.nn.Linear(6, 11).half(), torch.randn(2, 5, 6, dtype=torch.float16, requires_grad=True)
    loss, *_ = target_loss.target_loss(head, hidden_states, TARGETS, torch.full((2, 5), 1e-8))
    (1e8 * loss).backward()
    assert (hidden_states.grad[TARGETS >= 0] != 0).all()


@torch.no_grad()
def test_without_gradients_the_losses_are_the_same(model):
    with torch.enable_grad():
        expected = model(**inputs())
    output = model(**inputs())
    assert torch.equal(output.loss, expected.loss) and torch.equal(output.target_losses, expected.target_losses)


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
