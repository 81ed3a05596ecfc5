"""Streaming and blockwise decoding: entropy says which slots are filled, and the leading filled ones are committed."""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig

from wedlm.generation.callbacks import Callbacks
from wedlm.generation.sampling import are_possible, implies, read_slots
from wedlm.generation.sequences import Queries, Sequences, Settings, State, Strategy


class Rule(NamedTuple):
    """Which slots a step fills, and when the filled ones are committed."""

    entropy_threshold: Tensor | None  # [], in nats
    distance_penalty: Tensor  # []
    is_blockwise: bool  # a window is committed when all of it is filled: the paper's ablation

    @classmethod
    def of(cls, config: GenerationConfig, window_size: int, query_cost: float, device: torch.device) -> "Rule":
        threshold = config.entropy_threshold
        return cls(
            entropy_threshold=None if threshold is None else torch.full((), float(threshold), device=device),
            distance_penalty=torch.full((), float(config.distance_penalty), device=device),
            is_blockwise=config.decoding == "blockwise",
        )


class Slots(NamedTuple):
    """Which slots have their token. A token is final when no open slot stands before its own (and, in blockwise
    decoding, when its whole window is filled)."""

    filled: Tensor  # [batch, slots + 1]


def begin(sequences: Sequences, settings: Settings) -> State:
    num_queries = sequences.limit.clamp(max=settings.window_size)
    filled = torch.zeros_like(sequences.tokens, dtype=torch.bool)
    return State(sequences._replace(num_queries=num_queries), Slots(filled))


def queries(state: State, width: int, settings: Settings) -> Queries:
    """The filled slots in position order, then a MASK for each open one in position order; these predict."""
    (sequences, kept), query = state, settings.arange[:width]
    num_needed = sequences.num_queries[:, None]
    inside = query < num_needed
    slots = (sequences.num_committed[:, None] + query).clamp(max=sequences.scratch_slot)  # [batch, width]
    filled = kept.filled.gather(1, slots) & inside
    # 0 for filled, 1 for open, 2 behind the window; stable, so that each kind stays in position order.
    by_kind = (2 - inside.int() - filled.int()).argsort(dim=-1, stable=True)
    slots, num_filled = slots.gather(1, by_kind), filled.sum(-1, keepdim=True)
    of_masks = query[: settings.window_size] + num_filled  # the queries from the first MASK on
    indices = of_masks.clamp(max=width - 1)
    return Queries(
        input_ids=sequences.tokens.gather(1, slots).masked_fill(query >= num_filled, settings.mask_token_id),
        position_ids=sequences.prompt_lengths[:, None] + slots,
        logits_indices=indices,
        predicted_slots=slots.gather(1, indices),
        is_predicted=of_masks < num_needed,
        num_needed=num_needed,
    )


def choose(
    state: State, queries: Queries, logits: Tensor, settings: Settings, callbacks: Callbacks | None
) -> tuple[State, Tensor, Tensor, Tensor]:
    """Fills the open slots that their entropy selects; those filled without a gap are new."""
    sequences, kept = state
    slots, sequences = queries.predicted_slots, sequences.counted(sequences.is_alive)
    tokens, best, entropy = read_slots(logits, settings, sequences.number, slots, also=entropy_of)
    threshold, penalty = settings.rule.entropy_threshold, settings.rule.distance_penalty
    selected = select_slots(entropy, slots, queries.is_predicted, threshold, penalty)
    is_possible = implies(selected, are_possible(best))
    if settings.processors_read_text:  # the callbacks choose, and refuse what is impossible
        # The slots selected without a gap, or at least the first open one.
        lengths = torch.maximum(selected.cumprod(-1).sum(-1), queries.is_predicted[:, 0].long())
        tokens, is_chosen = callbacks.choose_run(sequences, slots, lengths, logits)
        selected = queries.is_predicted & is_chosen
        is_possible = torch.ones_like(selected)
    written = sequences.write(slots, selected, tokens)  # What is not selected goes to the scratch column.
    kept.filled.scatter_(1, written, selected)
    if callbacks is not None:
        callbacks.note_filled(sequences, kept.filled, queries, selected, logits)
    state = State(sequences, kept)
    new, num_new = run_of(state, settings)
    return state, new, num_new, is_possible


def run_of(state: State, settings: Settings) -> tuple[Tensor, Tensor]:
    """The tokens behind the final ones, `[batch, window_size]`, and how many of them are filled without a gap."""
    slots = state.sequences.num_final[:, None] + settings.arange[: settings.window_size]
    slots = slots.clamp(max=state.sequences.scratch_slot)
    return state.sequences.tokens.gather(1, slots), state.kept.filled.gather(1, slots).cumprod(-1).sum(-1)


def commit(state: State, num_new: Tensor, settings: Settings, num_rows: int) -> tuple[State, Tensor]:
    """Commits the pending slots. The new final ones become pending, and as many open slots join the window.

    The window of a sequence that has ended becomes empty.
    """
    sequences, kept = state
    num_kept = sequences.num_pending  # the first queries of this forward pass
    num_committed, num_in_window = sequences.num_committed + num_kept, sequences.num_queries - num_kept
    becomes_pending = sequences.is_alive
    if settings.rule.is_blockwise:  # as soon as the whole window is filled
        becomes_pending = becomes_pending & (num_new == num_in_window)
    num_pending = num_new * becomes_pending
    num_queries = torch.minimum(num_in_window + num_pending, sequences.limit - num_committed) * sequences.is_alive
    sequences = sequences._replace(
        num_committed=num_committed, num_final=num_committed + num_pending, num_queries=num_queries
    )
    return State(sequences, kept), num_kept


STREAMING = Strategy(
    rule=Rule.of,
    begin=begin,
    first_queries=lambda state, settings: queries(state, settings.window_size, settings),
    most_queries=lambda settings: 2 * settings.window_size,  # the pending slots, and a window after them
    queries=queries,
    choose=choose,
    commit=commit,
    guesses=lambda state: None,  # `Callbacks.note_filled` has them from the logits
    counts=lambda state, window_size: {},
)


def entropy_of(logits: Tensor, *_: Tensor) -> Tensor:
    """Entropy in nats of the softmax over the last dimension, in float32."""
    return torch.special.entr(logits.float().softmax(-1)).sum(-1)


def select_slots(
    entropy: Tensor,
    slots: Tensor,
    is_open: Tensor,
    entropy_threshold: Tensor | float | None,
    distance_penalty: Tensor | float,
) -> Tensor:
    """Selects the open slots to fill now; every row with an open slot fills at least one.

    adjusted = entropy + distance_penalty * (slot - first open slot)

    A slot is selected where adjusted < entropy_threshold. If there is none, or the threshold is None, the slot with
    the least adjusted entropy is selected, the first one on ties.

    Args:
        entropy (`torch.Tensor` of shape `(batch, slots)`): The entropy of each slot's prediction, in nats.
        slots (`torch.LongTensor` of shape `(batch, slots)`): The slots in ascending order, the first open one in
            front.
        is_open (`torch.BoolTensor` of shape `(batch, slots)`): False behind a row's last open slot.
        entropy_threshold (`float`, *optional*): In nats.
        distance_penalty (`float`): In nats for each slot of distance.

    Returns:
        `torch.BoolTensor` of shape `(batch, slots)`: The slots to fill.

    >>> select_slots(torch.tensor([[0.5, 0.1, 0.1]]), torch.tensor([[4, 5, 7]]), torch.ones(1, 3).bool(), 0.2, 0.02)
    tensor([[False,  True,  True]])
    >>> select_slots(torch.tensor([[0.5, 0.1, 0.1]]), torch.tensor([[4, 5, 7]]), torch.ones(1, 3).bool(), None, 0.02)
    tensor([[False,  True, False]])
    """
    adjusted = entropy + distance_penalty * (slots - slots[:, :1])
    adjusted = adjusted.masked_fill(~is_open, torch.inf)
    least = torch.zeros_like(is_open).scatter(-1, adjusted.argmin(-1, keepdim=True), True)
    if entropy_threshold is None:
        return least & is_open
    certain = adjusted < entropy_threshold
    return torch.where(certain.any(-1, keepdim=True), certain, least) & is_open
