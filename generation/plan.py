"""The plan of a verified step: which drafts it verifies, and which MASKs draft for the next one."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from wedlm.generation.sequences import Sequences, Settings

WIDEST = 32  # slots that a plan with MASKs reaches; its tables grow with the square


def cost_of_query(sequences: Sequences, settings: Settings, num_rows: int) -> Tensor:
    """What one more query costs in tokens, `[batch, 1]`: its share of a forward pass, times the tokens of one so far.

    All rows are as wide as the widest, so one more query in a row is one in each of `num_rows`.
    """
    share = relative_cost(settings.rule.query_cost, 1 if decides_alone(settings) else num_rows)
    pace = (sequences.num_final / sequences.forwards).clamp(min=1) * sequences.is_alive
    return (share * pace)[:, None]


def decides_alone(settings: Settings) -> bool:
    """Whether a row's plan ignores the others: with an `acceptance_ratio` below 1 the plan changes the text."""
    return settings.rule.margin is not None


def relative_cost(query_cost: float, num_rows: int) -> float:
    """The time of `num_rows` more queries, one a row, as a share of a forward pass of one query a row.

    A forward pass of n queries costs 1 + query_cost * (n - 1).
    """
    return num_rows * query_cost / (1 + query_cost * (num_rows - 1))


def num_worthwhile(chances: Tensor, sequences: Sequences, settings: Settings, num_rows: int) -> Tensor:
    """The number of drafts, of these chances, that promise more tokens than they cost, `[batch]`."""
    gains = chances * (settings.arange[: chances.shape[1]] < sequences.num_open[:, None])
    return pays(gains, cost_of_query(sequences, settings, num_rows), decides_alone(settings)).sum(-1)


def pays(gains: Tensor, cost: Tensor | float, is_alone: bool) -> Tensor:
    """Whether queries gain more tokens than they cost. Rows that are not alone decide by the mean of each column.

    (A column may be each row's n-th best query, since a forward pass of n queries costs all rows alike.)
    """
    above_cost = gains - cost
    return ((above_cost if is_alone else above_cost.mean(0)) > 0) & (gains > 0)


def plan_step(
    chances: Tensor,
    next_chance: Tensor,
    num_open: Tensor,
    most: Tensor,
    cost: Tensor | float = 0.0,
    is_alone: bool = False,
    masks_shift: bool = False,
    rank: Tensor | None = None,
) -> Tensor:
    """Takes the queries that promise most tokens, as far as each promises more than it costs.

    A draft brings a token in this step if it is accepted with all drafts before it. A MASK brings a token in the next
    step if exactly the drafts that its branch sees are accepted now, and the draft that it makes is accepted then. The
    first MASK of a branch stands for the token that this step writes behind the accepted drafts. It makes no draft,
    and the second needs it, so each counts half of the second one's gain; where MASKs shift it makes the first draft.

    Args:
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): P(at least n drafts are accepted), n = 1, 2,
            ...; 0 where there is no draft.
        next_chance (`torch.FloatTensor` of shape `(batch, 1)`): P(a draft of a new branch is accepted, if those before
            it are).
        num_open (`torch.LongTensor` of shape `(batch,)`): The slots that are still to be filled.
        most (`torch.LongTensor` of shape `(batch,)`): The most queries besides the pending token.
        cost (`torch.FloatTensor` of shape `(batch, 1)`, *optional*, defaults to 0.0): The tokens that a query costs.
        is_alone (`bool`, *optional*, defaults to `False`): Whether each row counts its own gain, not the mean.
        masks_shift (`bool`, *optional*, defaults to `False`): As in `Settings`.
        rank (`torch.LongTensor`, *optional*): 0, 1, 2, ..., so that it need not be made.

    Returns:
        `torch.LongTensor` of shape `(batch, window_size + 1)`: where, counted from the first draft, the branch for 0,
        1, 2, ... accepted drafts begins, and where the last one ends. The first number is that of the drafts.
    """
    num_unused = max(0, chances.shape[1] + 1 - WIDEST)
    size = chances.shape[1] + 1 - num_unused
    rank = torch.arange(2 * size, device=chances.device) if rank is None else rank[: 2 * size]
    order = rank[:size]
    distance = order + 1 if masks_shift else order.clamp(min=1)  # the draft that a MASK makes, or helps to make
    of_drafts = pad(chances[:, : size - 1], (0, 1)) * (order < num_open[:, None])
    exactly = pad(of_drafts[:, :-1], (1, 0), value=1.0) - of_drafts  # P(exactly n drafts are accepted)
    of_distance = next_chance**distance
    if masks_shift:
        of_distance[:, -1] = 0  # There are no more drafts than the window has slots behind its first.
    else:
        of_distance[:, :2].div_(2)
    has_slot = order[:, None] + distance < num_open[:, None, None]
    of_masks = exactly[:, :, None] * of_distance[:, None] * has_slot  # [batch, branches, MASKs]

    gains = torch.cat([of_drafts[:, None], of_masks], dim=1).flatten(1)
    gains, query = (each[:, : 2 * size] for each in gains.sort(descending=True, stable=True))
    is_taken = pays(gains, cost, is_alone) & (rank < most[:, None])
    numbers = torch.zeros_like(query[:, : size + 1]).scatter_add(1, query // size, is_taken.long())
    num_masks = numbers[:, 1:]  # a view: `numbers` changes, too
    if not masks_shift:
        num_masks.masked_fill_(num_masks == 1, 0)  # one MASK makes no draft
    bounds = numbers.cumsum(-1)
    if num_unused > 0:
        bounds = torch.cat([bounds, bounds[:, -1:].expand(-1, num_unused)], dim=-1)
    return bounds
