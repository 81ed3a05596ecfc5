"""Verified decoding: speculative decoding with drafts that are looked up in the text.

A forward pass goes over the last token of the text and the drafts behind it. Its logits say what token by token
decoding would write behind each of them. The drafts that are these tokens are accepted, up to the first other one; the
model's own token is written behind them. So drafts decide how many tokens a step writes, and not which. (Only an
`acceptance_ratio` below 1 also accepts others.)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig

from wedlm.generation.callbacks import Callbacks
from wedlm.generation.plan import num_worthwhile
from wedlm.generation.sampling import are_possible, draft_or_best, implies, over_slots, processed, read_slots
from wedlm.generation.sequences import NO_TOKEN, Queries, Sequences, Settings, State, Strategy

MOST_MATCHED = 6  # last tokens that a look-up compares: longer matches say no more about the next one
HALF_MATCH = 3  # A looked up draft behind a match of n tokens gets the chance n / (n + HALF_MATCH).
DECAY = 0.9  # In a record each step counts this share of the step after it.
PRIOR = 2.0  # is added to both sums of a record, so that few drafts change little
MOST_CERTAIN = 0.99


class Rule(NamedTuple):
    """How drafts are looked up, and what it takes to verify and to accept one."""

    num_looked_up: int  # the most drafts that are looked up in the text
    most_matched: int  # the most last tokens that are compared for that
    match_chances: Tensor  # [...]: P(a draft is accepted), indexed by the number of matched tokens in front of it
    margin: Tensor | None  # [], how far below the best score that of an accepted draft may be; None: only the best
    query_cost: float  # what one more query costs, as a share of a forward pass with one

    @classmethod
    def of(cls, config: GenerationConfig, window_size: int, query_cost: float, device: torch.device) -> "Rule":
        most_matched, num_looked_up = config.max_matching_ngram_size, config.num_looked_up
        matched = torch.arange(MOST_MATCHED + window_size, device=device).clamp(max=MOST_MATCHED)
        margin = -math.log(config.acceptance_ratio)
        return cls(
            num_looked_up=window_size - 1 if num_looked_up is None else num_looked_up,
            most_matched=MOST_MATCHED if most_matched is None else min(most_matched, MOST_MATCHED),
            match_chances=matched / (matched + HALF_MATCH),
            margin=torch.full((), margin, device=device) if margin > 0 else None,
            query_cost=query_cost,
        )


class Drafts(NamedTuple):
    """The drafts behind the text, and the record of those before them."""

    # [batch, slots + 1]: the distance from the end of the text at which the draft of a slot was verified, negative if
    # it was rejected; 0 where there was none
    verified_at: Tensor
    tokens: Tensor  # [batch, window_size - 1]: the drafts
    estimates: Tensor  # [batch, window_size - 1]: P(accepted, if those before it are), by the match
    chances: Tensor  # [batch, window_size - 1]: P(it and all before it are accepted), corrected by the record
    num_drafts: Tensor  # [batch]: how many the next forward pass verifies
    record: Tensor  # [batch, (observed, expected)]: accepted drafts, summed over the steps by DECAY


def begin(sequences: Sequences, settings: Settings) -> State:
    none = sequences.tokens.new_zeros(len(sequences.number), settings.window_size - 1)
    zeros, record = torch.zeros_like(sequences.number), none.new_zeros(len(none), 2, dtype=torch.float32)
    drafts = Drafts(torch.zeros_like(sequences.tokens), none, none.float(), none.float(), zeros, record)
    return State(sequences, drafts)


def queries(state: State, width: int, settings: Settings) -> Queries:
    """The pending last token of the text, and the drafts. Each predicts the slot behind its own."""
    sequences, query = state.sequences, settings.arange[:width]
    num_needed, slots = sequences.num_queries[:, None], sequences.num_committed[:, None] + query
    last = sequences.tokens.gather(1, sequences.num_committed[:, None])
    is_used, predicted_slots = query < num_needed, slots + 1
    return Queries(
        input_ids=torch.cat([last, state.kept.tokens], dim=-1)[:, :width].where(is_used, last),
        position_ids=sequences.prompt_lengths[:, None] + slots,
        logits_indices=query.expand_as(slots),
        predicted_slots=predicted_slots,
        is_predicted=is_used & (predicted_slots < sequences.limit[:, None]),
        num_needed=num_needed,
    )


def choose(
    state: State, queries: Queries, logits: Tensor, settings: Settings, callbacks: Callbacks | None
) -> tuple[State, Tensor, Tensor, Tensor]:
    """Verifies the drafts, writes what is final now, and looks up the next drafts."""
    state, new, num_new, is_possible, _ = verify(state, queries, logits, settings, callbacks)
    return draft(state, num_new, settings), new, num_new, is_possible


def num_accepted(drafts: Tensor, tokens: Tensor) -> Tensor:
    """How many drafts are accepted: those before the first that is not the token that the model chooses in its place.

    >>> num_accepted(torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]]), torch.tensor([[5, 6, 0, 8], [1, 6, 7, 8]]))
    tensor([[2],
            [0]])
    """
    return (drafts == tokens).cumprod(-1).sum(-1, keepdim=True)


def verify(
    state: State,
    queries: Queries,
    logits: Tensor,
    settings: Settings,
    callbacks: Callbacks | None,
    also: Callable | None = None,
) -> tuple[State, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Writes the accepted drafts and the model's token behind them.

    Returns what `Strategy.choose` returns, and what `read_slots(..., also)` has read of all queries.
    """
    sequences, drafts = state
    size = min(settings.window_size, queries.predicted_slots.shape[1])
    # (Where drafts are few, MASKs of branches follow in these columns, which `order <= accepted` leaves out.)
    slots, may_fill = queries.predicted_slots[:, :size], queries.is_predicted[:, :size]
    order, num_drafts = settings.arange[:size], drafts.num_drafts[:, None]
    proposed = pad(drafts.tokens, (0, 1))[:, :size].masked_fill(order >= num_drafts, NO_TOKEN)
    callbacks_choose = settings.processors_read_text
    read: tuple[Tensor, ...] = ()
    if also is not None or not callbacks_choose:
        read = read_slots(logits, settings, sequences.number, queries.predicted_slots, also)
    if callbacks_choose:
        lengths = (may_fill & (order <= num_drafts)).sum(-1)
        tokens, is_chosen = callbacks.choose_run(sequences, slots, lengths, logits, proposed)
        may_fill = may_fill & is_chosen
    elif settings.rule.margin is not None:
        tokens = nearly_best(proposed, logits[:, :size], settings)
    else:
        tokens = read[0][:, :size]
    # (A sequence at its limit that waits in step takes no part.)
    sequences = sequences.counted(queries.is_predicted[:, 0])
    accepted = num_accepted(proposed, tokens)
    is_final = may_fill & (order <= accepted)
    if callbacks is not None and not callbacks_choose:
        callbacks.records.put_selected(sequences, queries, is_final, logits, settings.processors)
    # n for draft n if it was accepted, -n if it was rejected, and 0 for a token that had no draft.
    distance = settings.arange[1 : size + 1]
    outcome = distance.where(order < accepted, -distance * (accepted < num_drafts))
    written = sequences.write(slots, is_final, tokens)  # What is not final goes to the scratch column.
    drafts.verified_at.scatter_(1, written, outcome)
    # (The callbacks refuse what is impossible by themselves.)
    is_possible = torch.ones_like(is_final) if callbacks_choose else implies(is_final, are_possible(read[1][:, :size]))
    return State(sequences, drafts), tokens, is_final.sum(-1), is_possible, read


def nearly_best(drafts: Tensor, logits: Tensor, settings: Settings) -> Tensor:
    """For an `acceptance_ratio` below 1: a draft where its score is near enough to the best, else the best token."""

    def read(logits: Tensor, drafts: Tensor) -> tuple[Tensor]:
        return (draft_or_best(processed(logits, settings.processors), drafts, settings.rule.margin),)

    return over_slots(read, logits, drafts)[0]


def draft(state: State, num_new: Tensor, settings: Settings) -> State:
    """Looks up the next drafts, and records how many of the last ones were accepted, and how many were expected.

    The record of the steps before this one corrects the estimates; the outcome of this step counts from the next on.
    """
    drafts = state.kept
    tokens, estimates = looked_up(state.sequences, num_new, settings)
    # (The accepted drafts, num_new - 1, and the first rejected one.)
    is_verified = settings.arange[1 : settings.window_size] <= torch.minimum(num_new, drafts.num_drafts)[:, None]
    outcome = torch.stack([(num_new - 1).clamp(min=0), (drafts.estimates * is_verified).sum(-1)], dim=-1)
    drafts = drafts._replace(
        tokens=tokens,
        estimates=estimates,
        chances=chances_of(estimates, corrections(drafts.record)),
        record=outcome.add(drafts.record, alpha=DECAY),
    )
    return State(state.sequences, drafts)


def corrections(record: Tensor) -> Tensor:
    """Observed / expected, of a record `[batch, (observed, expected), ...]` and the PRIOR."""
    sums = record + PRIOR
    return sums[:, 0] / sums[:, 1]


def chances_of(estimates: Tensor, correction: Tensor) -> Tensor:
    """P(a draft and all before it are accepted), from `[..., drafts]` estimates and their `[...]` correction."""
    return (estimates * correction[..., None]).clamp(max=MOST_CERTAIN).cumprod(-1)


def commit(state: State, num_new: Tensor, settings: Settings, num_rows: int) -> tuple[State, Tensor]:
    """Commits all final tokens but the last, the first query of the next forward pass, and plans its drafts."""
    sequences, num_kept = all_but_last_committed(state.sequences, num_new)
    num_drafts = num_worthwhile(state.kept.chances, sequences, settings, num_rows)
    sequences = sequences._replace(num_queries=sequences.num_pending + num_drafts)
    return State(sequences, state.kept._replace(num_drafts=num_drafts)), num_kept


def all_but_last_committed(sequences: Sequences, num_new: Tensor) -> tuple[Sequences, Tensor]:
    """Commits all final tokens but the last, which no query has held yet; says how many queries stay in the cache."""
    # (0 where a sequence had ended before, or waits in step at its limit, when all its tokens are committed.)
    has_new = num_new.clamp(max=1)
    num_committed = sequences.num_final + num_new - has_new
    num_final = num_committed + has_new * sequences.is_alive
    num_kept = num_committed - sequences.num_committed
    return sequences._replace(num_committed=num_committed, num_final=num_final), num_kept


def looked_up(sequences: Sequences, num_new: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """Drafts from the text with its `num_new` new tokens, and P(accepted, if those before it are) of each."""
    num_drafts, rule = settings.window_size - 1, settings.rule
    if min(num_drafts, rule.num_looked_up) == 0:
        none = sequences.tokens.new_zeros(len(num_new), num_drafts)
        return none, none.float()
    text = torch.cat([sequences.prompt, sequences.tokens], dim=-1)
    last = sequences.num_final + num_new + (sequences.prompt.shape[1] - 1)
    drafts, num_matched = look_up(text, last[:, None], num_drafts, rule.most_matched)
    # Draft i follows num_matched + i matching tokens. Without a match the first has the chance 0, and so have all.
    chances = rule.match_chances[num_matched + settings.arange[:num_drafts]]
    if rule.num_looked_up < num_drafts:
        chances[:, rule.num_looked_up :] = 0
    return drafts, chances


def look_up(text: Tensor, last: Tensor, num_drafts: int, most_matched: int = MOST_MATCHED) -> tuple[Tensor, Tensor]:
    """Finds the last column where the text's last tokens stand as well, and drafts what follows there.

    The longest match is taken, of `most_matched` tokens at most. Where the text behind it ends, the drafts begin again
    behind the match, so that a text that repeats itself goes on repeating. A row of `text` `[batch, columns]` holds
    NO_TOKEN, then its tokens without a gap up to column `last` `[batch, 1]`, then at least one column. Returns the
    drafts, `[batch, num_drafts]`, and the length of each row's match, `[batch, 1]`.
    """
    width = text.shape[1]
    count = torch.arange(max(width, num_drafts), device=text.device)
    column = count[:width]
    endings = pad(text, (most_matched - 1, 0), value=-1).unfold(1, most_matched, 1)  # [batch, columns, matched]
    is_same = endings == endings.gather(1, last[..., None].expand(-1, -1, most_matched))
    num_matched = is_same.flip(-1).cumprod(-1, dtype=torch.uint8).sum(-1)
    # One number orders by both: the longest match, and the last one of these. (Without a match it is column 0.)
    score, best = (torch.add(column, num_matched, alpha=width) * (column < last)).max(-1, keepdim=True)
    behind = best + 1 + count[:num_drafts] % (last - best).clamp(min=1)
    return text.gather(1, behind), score // width


def guesses(state: State) -> tuple[Tensor, Tensor]:
    """The text of the one sequence with its drafts, and which of these tokens are no guesses."""
    num_final, num_drafts = state.sequences.num_final[0], state.kept.num_drafts[0]
    tokens = torch.cat([state.sequences.tokens[0, :num_final], state.kept.tokens[0, :num_drafts]])
    return tokens, torch.arange(len(tokens), device=tokens.device) < num_final


def counts(state: State, window_size: int) -> dict[str, Any]:
    """How many drafts of the text, none behind its end, were verified and accepted at each distance."""
    verified_at, sequences = state.kept.verified_at[:, :-1], state.sequences
    is_text = torch.arange(verified_at.shape[1], device=verified_at.device) < sequences.num_tokens[:, None]
    zeros = torch.zeros_like(verified_at[:, : min(window_size, int(sequences.limit.max()))])
    parts = {"verified_drafts": is_text, "accepted_drafts": is_text & (verified_at > 0)}
    return {name: zeros.scatter_add(1, verified_at.abs(), part.long())[:, 1:] for name, part in parts.items()}


VERIFIED = Strategy(Rule.of, begin, queries, choose, commit, lambda settings: settings.window_size, guesses, counts)
