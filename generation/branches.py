"""Drafts of MASKs, for verified decoding of models that have a MASK.

A forward pass has MASKs behind its drafts, and their logits are the next drafts. They must not see a draft that is
rejected, and nobody knows beforehand which one that is. So they come in branches, one for each number of accepted
drafts; a branch sees that many drafts and no other. Its first MASK stands at the slot that the step writes behind
them, the others at the slots of the next drafts. Where MASKs predict the token behind them (`Settings.masks_shift`),
each makes a draft; otherwise the first one makes none.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from wedlm.generation.callbacks import Callbacks
from wedlm.generation.plan import cost_of_query, decides_alone, plan_step
from wedlm.generation.sampling import share_of_best
from wedlm.generation.sequences import Queries, Sequences, Settings, State
from wedlm.generation.verified import (
    DECAY,
    VERIFIED,
    all_but_last_committed,
    chances_of,
    corrections,
    looked_up,
    verify,
)

NEXT_CHANCE = 0.7  # that a draft of a branch is accepted if those before it are, as long as nothing is known


class Branches(NamedTuple):
    """The drafts behind the text, the branches of MASKs behind these, and the record of those before them."""

    verified_at: Tensor  # [batch, slots + 1]: as in `Drafts`
    tokens: Tensor  # [batch, window_size - 1]: the drafts
    estimates: Tensor  # [batch, window_size - 1]: P(accepted, if those before it are), by its scores or the match
    chances: Tensor  # [batch, window_size - 1]: P(it and all before it are accepted), corrected by the record
    num_drafts: Tensor  # [batch]: how many the next forward pass verifies
    is_looked_up: Tensor  # [batch, 1]: whether the drafts come from the text
    # [batch, window_size + 1]: the query where the branch for 0, 1, 2, ... accepted drafts begins, and where the last
    # one ends, which is the number of queries
    bounds: Tensor
    most: Tensor  # [batch]: the most queries of a forward pass besides its first
    # [batch, (observed, expected), (drafts of MASKs, looked up drafts, chances of a branch)]: sums over the steps,
    # each of which counts DECAY of the next
    record: Tensor


def begin(sequences: Sequences, settings: Settings) -> State:
    drafts, size = VERIFIED.begin(sequences, settings).kept, settings.window_size
    batch, none = len(drafts.tokens), drafts.tokens
    branches = Branches(
        verified_at=drafts.verified_at,
        tokens=none,
        estimates=drafts.estimates,
        chances=drafts.chances,
        num_drafts=drafts.num_drafts,
        is_looked_up=none.new_zeros(batch, 1, dtype=torch.bool),
        bounds=none.new_zeros(batch, size + 1),
        # A limit below the window makes the window as small, whatever the shape of the steps is.
        most=2 * sequences.limit.clamp(max=size) - 1,
        record=none.new_zeros(batch, 2, 3, dtype=torch.float32),
    )
    return State(sequences, branches)


def queries(state: State, width: int, settings: Settings) -> Queries:
    """The pending last token of the text, the drafts, the MASKs. Text and drafts predict the slot behind theirs."""
    sequences, branches = state
    query, bounds, num_needed = settings.arange[:width], branches.bounds, branches.bounds[:, -1:]
    is_text, is_used = query < bounds[:, :1], query < num_needed  # (drafts count as text)
    branch = (bounds[:, 1:, None] <= query).sum(1)
    num_seen = branch + 1  # drafts, and the pending token
    # The first MASK of a branch stands at the slot behind the queries that it sees.
    slot = torch.where(is_text, query, num_seen + query - bounds.gather(1, branch))
    slots = sequences.num_committed[:, None] + slot
    predicted_slots = slots + (1 if settings.masks_shift else is_text)
    last = sequences.tokens.gather(1, sequences.num_committed[:, None])
    tokens = torch.cat([last, branches.tokens, last.expand(-1, max(0, width - settings.window_size))], dim=-1)
    # (Queries that a row does not need are its last token, not MASK, for which draft adapters would work.)
    masks = last.masked_fill(is_used, settings.blank)
    return Queries(
        input_ids=tokens[:, :width].where(is_text, masks),
        position_ids=sequences.prompt_lengths[:, None] + slots,
        logits_indices=query.expand_as(slots),
        predicted_slots=predicted_slots,
        is_predicted=is_used & (predicted_slots < sequences.limit[:, None]),
        visible_prefix=num_seen.masked_fill(is_text, 0),
        num_needed=num_needed,
    )


def choose(
    state: State, queries: Queries, logits: Tensor, settings: Settings, callbacks: Callbacks | None
) -> tuple[State, Tensor, Tensor, Tensor]:
    """Verifies the drafts, writes what is final now, and takes the next drafts, drawn where tokens are drawn."""
    state, new, num_new, is_possible, read = verify(state, queries, logits, settings, callbacks, also=share_of_best)
    tokens, _, shares = read
    return draft(state, tokens, shares, num_new, settings), new, num_new, is_possible


def draft(state: State, tokens: Tensor, shares: Tensor, num_new: Tensor, settings: Settings) -> State:
    """Takes the next drafts from the branch that saw the accepted ones, or looks them up in the text.

    `tokens` and `shares` `[batch, queries]` are what each query predicts, and its share of the scores. The record of
    how the drafts fared in this text corrects the estimates of each source.
    """
    sequences, branches = state
    order = settings.arange[1 : settings.window_size]
    num_accepted = (num_new - 1).clamp(min=0)[:, None]

    # 1. The drafts of both sources. (Unless MASKs shift, the first one of a branch stood for a token that is final.)
    bounds = branches.bounds.unfold(1, 2, 1).gather(1, num_accepted[..., None].expand(-1, -1, 2))
    begin, end = bounds.unbind(-1)  # of the branch
    first = 0 if settings.masks_shift else 1
    mask = begin + settings.arange[first : first + settings.window_size - 1]
    is_made = mask < end
    mask = mask.clamp(max=tokens.shape[1] - 1)
    of_masks, estimates_of_masks = tokens.gather(1, mask), shares.gather(1, mask) * is_made
    of_text, estimates_of_text = looked_up(sequences, num_new, settings)

    # 2. Their chances, by the record of the steps before this one.
    estimates = torch.stack([estimates_of_masks, estimates_of_text], dim=1)  # [batch, sources, drafts]
    chances = chances_of(estimates, corrections(branches.record)[:, :2])
    expected = chances.sum(-1)

    # 3. What is recorded: the drafts that were verified, and the chances of this branch.
    is_verified = order <= torch.minimum(num_new, branches.num_drafts)[:, None]
    num_expected = (branches.estimates * is_verified).sum(-1, keepdim=True)
    sources = branches.is_looked_up == settings.arange[:2]  # of MASKs, of the text
    # The drafts of the branch whose predecessors are all accepted, in expectation. (Each chance is at most
    # MOST_CERTAIN of the one before, so the corrected NEXT_CHANCE stays below 1.)
    num_reached = (pad(chances[:, 0, :-1], (1, 0), value=1.0) * is_made).sum(-1)
    of_drafts = torch.cat([num_accepted, num_expected], dim=-1)[..., None] * sources[:, None]
    of_branches = torch.stack([expected[:, 0], NEXT_CHANCE * num_reached], dim=-1)[..., None]

    # 4. The better source.
    is_looked_up = expected[:, 1:] > expected[:, :1]
    estimates, chances = (torch.where(is_looked_up, each[:, 1], each[:, 0]) for each in (estimates, chances))
    branches = branches._replace(
        tokens=torch.where(is_looked_up, of_text, of_masks),
        estimates=estimates,
        chances=chances,
        is_looked_up=is_looked_up,
        record=torch.cat([of_drafts, of_branches], dim=-1).add(branches.record, alpha=DECAY),
    )
    return State(sequences, branches)


def commit(state: State, num_new: Tensor, settings: Settings, num_rows: int) -> tuple[State, Tensor]:
    """Commits all final tokens but the last, as without branches; plans drafts and MASKs of the next forward pass."""
    sequences, num_kept = all_but_last_committed(state.sequences, num_new)
    kept, next_chance = state.kept, NEXT_CHANCE * corrections(state.kept.record)[:, 2:]
    cost, is_alone, rank = cost_of_query(sequences, settings, num_rows), decides_alone(settings), settings.arange
    planned = plan_step(
        kept.chances, next_chance, sequences.num_open, kept.most, cost, is_alone, settings.masks_shift, rank
    )
    bounds = planned + sequences.num_pending[:, None]  # counted from the pending token
    branches = kept._replace(num_drafts=planned[:, 0], bounds=bounds)
    return State(sequences._replace(num_queries=bounds[:, -1]), branches), num_kept


BRANCHES = VERIFIED._replace(
    begin=begin,
    # (A window of one slot has no drafts, so it needs no MASK.)
    most_queries=lambda settings: 2 * settings.window_size if settings.window_size > 1 else 1,
    queries=queries,
    choose=choose,
    commit=commit,
)
