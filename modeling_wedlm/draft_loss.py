"""The loss of draft adapters: how far each MASK's prediction is from the model's own prediction for that token."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

NO_TEACHER = -1
QUERIES_PER_CHUNK = 256  # two distributions of each in float32: 0.3 GB at 152k tokens, and as much for gradients
CROSS_ENTROPY_WEIGHT = 0.1  # total variation has next to no gradient as long as the predictions have nothing in common


def draft_loss(
    lm_head: nn.Module, hidden_states: torch.Tensor, teachers: torch.Tensor, weights: torch.Tensor, mask_token_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes the weighted sum of the losses of the queries that have a teacher.

    The teacher of a query is the query of the same row that predicts the same token from all tokens before it. With
    their distributions q and p, the loss of a query is

        1/2 * sum(|p - q|) - 0.1 * log q(argmax p)

    The first term is the chance that a draft drawn from q is refused where p decides.

    Args:
        lm_head (`nn.Module`): The language-model head. It sees only queries with a teacher and their teachers.
        hidden_states (`torch.Tensor`): The last hidden states, `[batch, queries, hidden]`.
        teachers (`torch.Tensor`): The place of each query's teacher in its row, `[batch, queries]`; NO_TEACHER for
            none.
        weights (`torch.Tensor`): The weight of each query in the sum, `[batch, queries]`.
        mask_token_id (`int`): The token that no decoding writes; both distributions leave it out.

    Returns:
        The loss, and two detached tensors `[batch, queries]`: the total variation of each query, and whether its most
        likely token is that of its teacher. Queries without a teacher have 0 and False.
    """
    device = hidden_states.device
    teachers, weights = teachers.to(device), weights.to(device)
    first_of_row = torch.arange(len(teachers), device=device)[:, None] * teachers.shape[1]
    all_teachers = (first_of_row + teachers).flatten()
    chosen = (teachers.flatten() != NO_TEACHER).nonzero()[:, 0]  # waits for the device, the only time
    distances = torch.zeros(all_teachers.shape, device=device)
    hits = torch.zeros(all_teachers.shape, dtype=torch.bool, device=device)
    if len(chosen) == 0:
        loss = lm_head(hidden_states[:1, :1]).float().sum() * 0  # its graph reaches all weights
    else:
        flat = hidden_states.flatten(0, 1)
        queries_per_chunk = len(chosen) if is_deepspeed_zero3_enabled() else QUERIES_PER_CHUNK
        chunks = (x.split(queries_per_chunk) for x in (flat[chosen], flat[all_teachers[chosen]].detach()))
        parts = [
            checkpoint(chunk_loss, lm_head, *chunk, mask_token_id, use_reentrant=False)
            for chunk in zip(*chunks, strict=True)
        ]
        losses, chosen_distances, chosen_hits = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = (weights.flatten()[chosen] * losses).sum()
        distances[chosen], hits[chosen] = chosen_distances.detach(), chosen_hits
    return loss, distances.view(teachers.shape), hits.view(teachers.shape)


def chunk_loss(
    lm_head: nn.Module, hidden_states: torch.Tensor, of_teachers: torch.Tensor, mask_token_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def logits_of(hidden_states):  # [queries, vocabulary]
        logits = lm_head(hidden_states).float()
        logits[:, mask_token_id] = -torch.inf
        return logits

    with torch.no_grad():
        teacher = logits_of(of_teachers)
        best = teacher.argmax(-1)
        teacher = teacher.softmax(-1)
    logits = logits_of(hidden_states)
    distances = (logits.softmax(-1) - teacher).abs().sum(-1) / 2
    losses = distances + CROSS_ENTROPY_WEIGHT * cross_entropy(logits, best, reduction="none")
    return losses, distances, logits.argmax(-1) == best
