"""How a verified step spends its queries: on drafts, which it judges, and on MASKs, which make the next drafts."""

from typing import NamedTuple

import torch
from torch.nn.functional import pad


class StepPlan(NamedTuple):
    """The queries of a step behind its known token.

    Args:
        num_drafts (`torch.LongTensor` of shape `(batch,)`): The number of drafts that are judged.
        groups (`torch.LongTensor` of shape `(batch, drafts + 2)`): Where, among the MASKs, the group for 0, 1, 2, ...
            accepted drafts begins, and where the last group ends.
    """

    num_drafts: torch.Tensor
    groups: torch.Tensor


MOST_DRAFTS = 31  # that a plan holds; tables of a wider window would grow with its cube


def plan_step(
    chances: torch.Tensor,
    expected: torch.Tensor,
    num_open: torch.Tensor,
    most: torch.Tensor,
    prices: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> StepPlan:
    """Finds the plan with the largest expected number of tokens.

    A draft brings a token in this step if it is accepted. A MASK brings one in the next step, if its group is the one
    that saw the accepted drafts, and if the draft that the MASK makes is accepted then. The first MASK of a group
    makes no draft, since it stands for the token that this step makes known. It is worth nothing alone, so the next
    MASKs share their value with it.

    Args:
        chances (`torch.FloatTensor` of shape `(batch, drafts)`): P(at least n drafts are accepted), n = 1, 2, ...; 0
            where there is no draft.
        expected (`torch.FloatTensor` of shape `(batch, window_size - 1)`): The same for the drafts of a new group.
        num_open (`torch.LongTensor` of shape `(batch,)`): The slots that are still to be filled.
        most (`torch.LongTensor` of shape `(batch,)`): The most queries of a row behind the known token.
        prices (`torch.FloatTensor` of shape `(n,)`, *optional*): The price of 0, 1, ... n - 1 such queries in every
            row, in tokens of a row; no row gets more than n - 1. All rows may have as many as gain most. None: queries
            cost nothing.
        weights (`torch.FloatTensor` of shape `(batch,)`, *optional*): What a token of each row counts for that; with
            prices only.
    """
    if prices is not None and nothing_pays(chances, expected, prices, weights):
        return StepPlan(torch.zeros_like(most), most.new_zeros(len(most), chances.shape[1] + 2))
    num_unused = max(0, chances.shape[1] - MOST_DRAFTS)
    chances, expected = chances[:, :MOST_DRAFTS], expected[:, :MOST_DRAFTS]
    chances = pad(chances, (1, 0), value=1.0)  # of at least 0, 1, 2, ... accepted drafts
    place = torch.arange(chances.shape[1], device=chances.device)
    query = torch.arange(expected.shape[1] + 1, device=chances.device)
    if prices is not None:  # A draft that is made now is judged in the next step, among the queries of that step.
        expected = (expected - price_of_one(prices)).clamp(min=0)

    # Values of the MASKs: [batch, number of drafts, drafts that the group sees, place in the group].
    worth = with_first_mask(expected)
    is_last = place == place[:, None]  # the group that sees all drafts
    shares = torch.where(is_last, chances[:, None], (chances - pad(chances[:, 1:], (0, 1)))[:, None])
    shares = shares.clamp(min=0) * (place <= place[:, None])
    is_of_use = (place[:, None] + query < num_open[:, None, None]) & (place + 2 <= num_open[:, None])[..., None]
    values = (worth[:, None] * is_of_use)[:, None] * shares[..., None]

    values, order = values.flatten(2).sort(dim=-1, descending=True, stable=True)
    if prices is not None:
        most = affordable(values, chances, prices, weights, most)

    # The number of drafts that gains most with the best MASKs in the queries that it leaves.
    num_masks = most[:, None] - place  # [batch, number of drafts]
    gains = pad(values.cumsum(-1), (1, 0)).gather(2, num_masks.clamp(0, values.shape[-1])[..., None])[..., 0]
    gains = (gains + chances.cumsum(-1)).where((num_masks >= 0) & (chances > 0), -torch.inf)
    num_drafts = gains.argmax(-1, keepdim=True)
    order, values = (x.gather(1, num_drafts[..., None].expand(-1, -1, x.shape[-1]))[:, 0] for x in (order, values))
    is_taken = (torch.arange(order.shape[-1], device=order.device) < most[:, None] - num_drafts) & (values > 0)
    sizes = torch.zeros_like(chances, dtype=torch.long).scatter_add(1, order // len(query), is_taken.long())
    sizes = sizes.where(sizes > 1, 0)
    sizes = pad(sizes, (0, num_unused))
    return StepPlan(num_drafts[:, 0], pad(sizes.cumsum(-1), (1, 0)))


def nothing_pays(chances: torch.Tensor, expected: torch.Tensor, prices: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether all that can be gained is less than the price of one query, where nobody has to wait to know."""
    if prices.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    most = chances.sum(-1) + expected.sum(-1)
    return bool(((most - prices[1]) * weights).sum() <= 0)


def affordable(
    values: torch.Tensor, chances: torch.Tensor, prices: torch.Tensor, weights: torch.Tensor, most: torch.Tensor
) -> torch.Tensor:
    """The number of queries behind the known token, at most `most`, with which all rows together gain most."""
    place, number = (torch.arange(n, device=most.device) for n in (chances.shape[1], len(prices)))
    num_masks = (number - place[:, None]).expand(len(most), -1, -1)  # [batch, number of drafts, number of queries]
    gains = pad(values.cumsum(-1), (1, 0)).gather(2, num_masks.clamp(0, values.shape[-1]))
    gains = gains + (chances.cumsum(-1) - 1)[..., None]
    gains = gains.where((num_masks >= 0) & (chances > 0)[..., None], -torch.inf).amax(1)
    gains = gains.gather(1, torch.minimum(number, most[:, None].clamp(min=0)))  # Beyond `most` there is no more.
    return ((gains - prices) * weights[:, None]).sum(0).argmax().clamp(max=most)


def price_of_one(prices: torch.Tensor) -> torch.Tensor:
    """The price of one query in a step with as many as make it cheapest."""
    return (prices[1:] / torch.arange(1, len(prices), device=prices.device)).amin()


def with_first_mask(expected: torch.Tensor) -> torch.Tensor:
    """The values of the MASKs of a group, of which the first ones share theirs equally.

    As many share as have the largest mean: [0.6, 0.5, 0.1] gives [0.37, 0.37, 0.37, 0.1].
    """
    values = pad(expected, (1, 0), value=torch.inf).cummin(-1).values
    values[:, 0] = 0
    place = torch.arange(1, values.shape[1] + 1, device=values.device)
    mean, num_sharing = (values.cumsum(-1) / place).max(-1, keepdim=True)
    return values.where(place > num_sharing + 1, mean)
