"""How a verified step spends its queries: on drafts, which it verifies, and on MASKs, which make the next drafts."""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

WIDEST = 32  # slots that a plan reaches; its tables grow with the square


class StepPlan(NamedTuple):
    """The queries of a step behind its first one.

    Args:
        num_drafts (`torch.LongTensor` of shape `(batch,)`): The number of drafts that are verified.
        groups (`torch.LongTensor` of shape `(batch, window_size + 1)`): Where, among the MASKs, the group for 0, 1, 2,
            ... accepted drafts begins, and where the last group ends.
    """

    num_drafts: torch.Tensor
    groups: torch.Tensor


def plan_step(
    chances: torch.Tensor,
    next_chance: torch.Tensor,
    num_open: torch.Tensor,
    most: torch.Tensor,
    cost: torch.Tensor | float = 0.0,
) -> StepPlan:
    """Takes the queries that promise most tokens, as far as each promises more than it costs.

    A draft brings a token in this step if it is accepted with all drafts before it. A MASK brings a token in the next
    step if exactly the drafts that its group sees are accepted now, and the draft that it makes is accepted then. The
    first MASK of a group stands for the token that this step writes behind the accepted drafts. It makes no draft, so
    it shares the gain of the second one. All rows of a forward have as many queries, so what counts is the mean gain
    of a further query in each row.

    Args:
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): P(at least n drafts are accepted), n = 1, 2,
            ...; 0 where there is no draft.
        next_chance (`torch.FloatTensor` of shape `(batch, 1)`): P(a draft of a new group is accepted, if those before
            it are).
        num_open (`torch.LongTensor` of shape `(batch,)`): The slots that are still to be filled.
        most (`torch.LongTensor` of shape `(batch,)`): The most queries.
        cost (`torch.FloatTensor` of shape `(batch, 1)`, *optional*, defaults to 0.0): The tokens that a query costs.
    """
    num_unused = max(0, chances.shape[1] + 1 - WIDEST)
    size = chances.shape[1] + 1 - num_unused
    place, rank = (torch.arange(n, device=chances.device) for n in (size, 2 * size))
    of_drafts = pad(chances[:, : size - 1], (0, 1)) * (place < num_open[:, None])
    of_groups = pad(of_drafts[:, :-1], (1, 0), value=1.0) - of_drafts  # P(exactly n drafts are accepted)
    distance = place.clamp(min=1)
    of_masks = next_chance**distance
    of_masks[:, :2] /= 2
    has_slot = place[:, None] + distance < num_open[:, None, None]
    of_masks = of_groups[:, :, None] * of_masks[:, None] * has_slot  # [batch, groups, places in the group]

    gains = torch.cat([of_drafts[:, None], of_masks], dim=1).flatten(1)
    gains, order = (each[:, : 2 * size] for each in gains.sort(descending=True, stable=True))
    pays = (gains - cost).mean(0) > 0
    is_taken = pays & (gains > 0) & (rank < most[:, None])
    numbers = torch.zeros_like(order[:, : size + 1]).scatter_add(1, order // size, is_taken.long())
    sizes = numbers[:, 1:] * (numbers[:, 1:] > 1)
    if num_unused > 0:
        sizes = pad(sizes, (0, num_unused))
    return StepPlan(numbers[:, 0], pad(sizes.cumsum(-1), (1, 0)))


def relative_cost(query_cost: float, num_rows: int) -> float:
    """What one more query in each row adds to a forward over `num_rows` rows of one query, as a share of its cost.

    A forward of n queries costs 1 + query_cost * (n - 1).
    """
    return num_rows * query_cost / (1 + query_cost * (num_rows - 1))
