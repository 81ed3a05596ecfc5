"""The loss of draft adapters, against the formula."""

import pytest
import torch
from torch import nn

from wedlm.training import draft_loss as module
from wedlm.training.draft_loss import NO_TEACHER, draft_loss

VOCABULARY, WIDTH, MASK = 11, 6, 9
TEACHERS = torch.tensor([[NO_TEACHER, NO_TEACHER, 0, 1, NO_TEACHER, 1], [NO_TEACHER, 0, NO_TEACHER, 2, 3, 0]])


def inputs():
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return head, torch.randn(*TEACHERS.shape, WIDTH, requires_grad=True), torch.rand(TEACHERS.shape)


def reference(head, hidden_states, weights):
    """One query after another, in float64."""
    loss, distances, hits = 0.0, torch.zeros(TEACHERS.shape), torch.zeros(TEACHERS.shape, dtype=torch.bool)
    keep = [token for token in range(VOCABULARY) if token != MASK]
    for row, query in (TEACHERS != NO_TEACHER).nonzero().tolist():
        scores = hidden_states[row].double() @ head.weight.double().T
        q = scores[query, keep].softmax(-1)
        p = scores[TEACHERS[row, query], keep].softmax(-1).detach()
        distance = (p - q).abs().sum() / 2
        loss = loss + weights[row, query] * (distance - 0.1 * q[p.argmax()].log())
        distances[row, query], hits[row, query] = distance.detach(), q.argmax() == p.argmax()
    return loss, distances, hits


@pytest.mark.parametrize(("queries_per_chunk", "at_a_time"), [(256, 16), (5, 2)])
def test_values_and_gradients_are_those_of_the_formula(queries_per_chunk, at_a_time, monkeypatch):
    monkeypatch.setattr(module, "QUERIES_PER_CHUNK", queries_per_chunk)
    monkeypatch.setattr(module, "QUERIES_AT_A_TIME", at_a_time)
    gradients = []
    for compute in (lambda *given: draft_loss(given[0], given[1], TEACHERS, given[2], MASK), reference):
        head, hidden_states, weights = inputs()
        head.requires_grad_(False)
        loss, distances, hits = compute(head, hidden_states, weights)
        (3 * loss).backward()
        gradients.append((loss.detach().float(), distances, hits, hidden_states.grad))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected)
    assert gradients[0][2].any() and not gradients[0][1].requires_grad


def test_under_autocast_the_loss_is_nearly_the_same_and_the_gradient_keeps_its_type():
    head, hidden_states, weights = inputs()
    expected = draft_loss(head, hidden_states, TEACHERS, weights, MASK)[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        loss, *_ = draft_loss(head, hidden_states, TEACHERS, weights, MASK)
    loss.backward()
    assert loss.dtype == hidden_states.grad.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), expected, rtol=0.02, atol=0)


def test_hooks_of_the_head_run_once_and_see_no_gradient(monkeypatch):
    """However many chunks there are, as FSDP needs; tests of training show it with FSDP."""
    monkeypatch.setattr(module, "QUERIES_PER_CHUNK", 3)
    head, hidden_states, weights = inputs()
    outputs = []
    head.register_forward_hook(lambda *call: outputs.append(call[-1]))
    draft_loss(head, hidden_states, TEACHERS, weights, MASK)
    assert [output.requires_grad for output in outputs] == [False]


def test_without_teachers_the_loss_is_zero_and_its_gradient_is_there():
    head, hidden_states, weights = inputs()
    loss, distances, hits = draft_loss(head, hidden_states, torch.full_like(TEACHERS, NO_TEACHER), weights, MASK)
    loss.backward()
    assert loss == 0 and not distances.any() and not hits.any()
    assert not hidden_states.grad.any() and head.weight.grad is None
