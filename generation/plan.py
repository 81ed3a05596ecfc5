"""The plan of a verified step: which drafts it verifies, and which MASKs draft for the next one."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from wedlm.generation.sequences import Sequences, Settings

WIDEST = 32  # slots that a plan with MASKs reaches; its tables grow with the square


def price(sequences: Sequences, settings: Settings, num_rows: int) -> tuple[float, Tensor, bool]:
    """What one more query costs: a share of a forward pass, and the tokens `[batch, 1]` that a sequence writes in one.

    A forward pass is as wide as its widest row, so rows decide together. With an `acceptance_ratio` below 1 drafts
    decide what is written; then each row decides alone, as if no other were there, and the third value is True.
    """
    is_alone = settings.rule.margin is not None
    pace = (sequences.num_final / sequences.forwards).clamp(min=1) * sequences.is_alive
    return relative_cost(settings.rule.query_cost, 1 if is_alone else num_rows), pace[:, None], is_alone


def relative_cost(query_cost: float, num_rows: int) -> float:
    """What a query more in each of `num_rows` rows adds to a forward pass that has one in each, as a share of it.

    A forward pass of n queries costs 1 + query_cost * (n - 1).
    """
    return num_rows * query_cost / (1 + query_cost * (num_rows - 1))


def num_worthwhile(
    chances: Tensor, order: Tensor, num_open: Tensor, query_cost: float, pace: Tensor, is_alone: bool
) -> Tensor:
    """The number of drafts that promise more tokens than they cost, `[batch]`; `num_open` slots are to be filled.

    `order` is 0, 1, 2, ...
    """
    gains = chances * (order[: chances.shape[1]] < num_open[:, None])
    return pays(gains, query_cost, pace, is_alone).sum(-1)


def pays(gains: Tensor, query_cost: float, pace: Tensor | float, is_alone: bool) -> Tensor:
    """Whether queries gain more tokens than their cost is worth; rows that are not alone decide by their mean."""
    above_cost = gains.sub(pace, alpha=query_cost)
    return ((above_cost if is_alone else above_cost.mean(0)) > 0) & (gains > 0)


def plan_step(
    chances: Tensor,
    next_chance: Tensor,
    num_open: Tensor,
    most: Tensor,
    query_cost: float = 0.0,
    pace: Tensor | float = 1.0,
    is_alone: bool = False,
) -> Tensor:
    """Takes the queries that promise most tokens, as far as each promises more than it costs.

    A draft brings a token in this step if it is accepted with all drafts before it. A MASK brings a token in the next
    step if exactly the drafts that its branch sees are accepted now, and the draft that it makes is accepted then. The
    first MASK of a branch stands for the token that this step writes behind the accepted drafts. It makes no draft, so
    it shares the gain of those behind it.

    Args:
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): P(at least n drafts are accepted), n = 1, 2,
            ...; 0 where there is no draft.
        next_chance (`torch.FloatTensor` of shape `(batch, 1)`): P(a draft of a new branch is accepted, if those before
            it are).
        num_open (`torch.LongTensor` of shape `(batch,)`): The slots that are still to be filled.
        most (`torch.LongTensor` of shape `(batch,)`): The most queries.
        query_cost, pace, is_alone: What a query costs, as `price` says it.

    Returns:
        `torch.LongTensor` of shape `(batch, window_size + 1)`: where, counted from the first draft, the branch for 0,
        1, 2, ... accepted drafts begins, and where the last one ends. The first number is that of the drafts.
    """
    num_unused = max(0, chances.shape[1] + 1 - WIDEST)
    size = chances.shape[1] + 1 - num_unused
    rank = torch.arange(2 * size, device=chances.device)
    order, distance = rank[:size], rank[:size].clamp(min=1)
    of_drafts = pad(chances[:, : size - 1], (0, 1)) * (order < num_open[:, None])
    exactly = pad(of_drafts[:, :-1], (1, 0), value=1.0) - of_drafts  # P(exactly n drafts are accepted)
    of_distance = next_chance**distance
    of_distance[:, :2].div_(2)
    has_slot = order[:, None] + distance < num_open[:, None, None]
    of_masks = exactly[:, :, None] * of_distance[:, None] * has_slot  # [batch, branches, MASKs]

    gains = torch.cat([of_drafts[:, None], of_masks], dim=1).flatten(1)
    gains, query = (each[:, : 2 * size] for each in gains.sort(descending=True, stable=True))
    is_taken = pays(gains, query_cost, pace, is_alone) & (rank < most[:, None])
    numbers = torch.zeros_like(query[:, : size + 1]).scatter_add(1, query // size, is_taken.long())
    num_masks = numbers[:, 1:]  # a view: `numbers` changes, too
    num_masks.masked_fill_(num_masks == 1, 0)  # one MASK makes no draft
    bounds = numbers.cumsum(-1)
    if num_unused > 0:
        bounds = torch.cat([bounds, bounds[:, -1:].expand(-1, num_unused)], dim=-1)
    return bounds
