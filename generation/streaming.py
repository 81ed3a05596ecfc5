"""Streaming and blockwise decoding: entropy says which slots are filled, and the leading filled ones are committed."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from wedlm.generation.callbacks import Callbacks
from wedlm.generation.sampling import choose_tokens, over_slots, processed
from wedlm.generation.window import Policy, Window, WindowQueries


@dataclass
class StreamingWindow(Window):
    """A window of open and filled slots. A filled slot keeps its token; it is final when no open slot is before it."""

    filled: torch.Tensor  # [batch, slots + 1]: whether the slot has its token
    end: torch.Tensor  # [batch]: the slot behind the window's last one

    PER_SLOT: ClassVar[tuple[str, ...]] = (*Window.PER_SLOT, "filled")

    @classmethod
    def own_fields(cls, zeros, max_new_tokens: int, policy: Policy, prompt: torch.Tensor | None) -> dict:
        return {
            "filled": zeros(max_new_tokens + 1, dtype=torch.bool),
            "end": zeros() + min(policy.window_size, max_new_tokens),
        }

    @property
    def num_queries(self) -> torch.Tensor:
        return self.end - self.start

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The filled slots in position order, then a MASK for each open one in position order; these predict."""
        query = policy.arange[:width]
        slots = self.start[:, None] + query  # [batch, width]
        inside = slots < self.end[:, None]
        slots = slots.clamp(max=self.scratch_slot)
        filled = self.filled.gather(1, slots) & inside
        # 0 for filled, 1 for open, 2 behind the window; stable, so that each group stays in position order.
        order = (2 - inside.int() - filled.int()).argsort(dim=-1, stable=True)
        slots = slots.gather(1, order)
        num_filled = filled.sum(-1, keepdim=True)
        indices = query[: policy.window_size] + num_filled
        num_needed = self.num_queries[:, None]
        is_predicted = indices < num_needed
        indices = indices.clamp(max=width - 1)
        return WindowQueries(
            input_ids=self.tokens.gather(1, slots).masked_fill(query >= num_filled, policy.mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            logits_indices=indices,
            predicted_slots=slots.gather(1, indices),
            is_predicted=is_predicted,
            num_needed=num_needed,
        )

    def count_forward(self, queries: WindowQueries) -> None:
        self.forwards = self.forwards + self.alive
        self.window_queries = self.window_queries + self.num_queries

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, callbacks: Callbacks | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Fills the open slots that their entropy selects."""
        noise, slots = policy.noise, queries.predicted_slots

        def read(logits: torch.Tensor, places: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            if policy.processors_read_text:
                return (entropy_of(logits),)
            scores = processed(logits, policy.processors)
            return entropy_of(logits), *choose_tokens(scores, None if noise is None else noise.at(places))

        places = () if noise is None else (noise.places(self.batch_rows, slots),)
        entropy, *chosen = over_slots(read, logits, *places)
        threshold, penalty = policy.entropy_threshold, policy.distance_penalty
        selected = select_slots(entropy, slots, queries.is_predicted, threshold, penalty)
        if policy.processors_read_text:
            selected, tokens = callbacks.choose_run(self, queries, selected, logits)
            is_possible = torch.ones_like(selected)
        else:
            tokens, is_possible = chosen
            is_possible = is_possible | ~selected
        self.filled.scatter_(1, self.put_tokens(slots, selected, tokens), selected)
        if callbacks is not None:
            callbacks.note_filled(self, queries, selected, logits)
        return self.num_run(policy), is_possible

    def num_run(self, policy: Policy) -> torch.Tensor:
        """The number of slots behind the leading ones that are filled without a gap, `[batch]`."""
        slots = self.behind_leading[:, None] + policy.arange[: policy.window_size]
        return self.filled.gather(1, slots.clamp(max=self.scratch_slot)).cumprod(-1).sum(-1)

    def advance(self, num_run: torch.Tensor, policy: Policy, num_rows: int) -> torch.Tensor:
        """Commits the leading slots. The next forward commits the new run, and as many open slots join the window.

        The window of a row that has ended becomes empty.
        """
        num_kept = self.num_leading
        self.start = self.start + num_kept
        self.num_leading = num_run * self.may_commit(num_run)
        end = (self.end + self.num_leading).clamp(max=self.limit)
        self.end = torch.where(self.alive, end, self.start)
        return num_kept

    def may_commit(self, num_run: torch.Tensor) -> torch.Tensor:
        return self.alive


@dataclass
class BlockwiseWindow(StreamingWindow):
    """A window that commits only when every slot of it is filled: the paper's ablation."""

    def may_commit(self, num_run: torch.Tensor) -> torch.Tensor:
        return self.alive & (num_run == self.num_queries)


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the softmax over the last dimension, in float32."""
    return torch.special.entr(logits.float().softmax(-1)).sum(-1)


def select_slots(
    entropy: torch.Tensor,
    slots: torch.Tensor,
    is_open: torch.Tensor,
    entropy_threshold: torch.Tensor | float | None,
    distance_penalty: torch.Tensor | float,
) -> torch.Tensor:
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
