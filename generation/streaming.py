"""Streaming and blockwise decoding: entropy says which slots are filled, and the leading filled ones are committed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wedlm.generation.policy import Policy
from wedlm.generation.position_selection import entropy_of, select_slots
from wedlm.generation.slot_noise import noise_places
from wedlm.generation.text_readers import TextReaders
from wedlm.generation.token_sampling import choose_tokens, over_slots, processed
from wedlm.generation.window import Window, WindowQueries


@dataclass
class StreamingWindow(Window):
    """A window of open and filled slots. A filled slot keeps its token; it is final when no open slot is before it.

    Args:
        end (`torch.LongTensor` of shape `(batch,)`): The slot behind the window's last one.
    """

    end: torch.Tensor

    @classmethod
    def opened_window(cls, zeros: Callable, max_new_tokens: int, policy: Policy) -> dict[str, torch.Tensor]:
        return {"end": zeros() + min(policy.window_size, max_new_tokens)}

    @property
    def num_queries(self) -> torch.Tensor:
        return self.end - self.start

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The filled slots in position order, then a MASK for each open one in position order; the MASKs are asked."""
        slots = self.start[:, None] + torch.arange(width, device=self.start.device)  # [batch, width]
        inside = slots < self.end[:, None]
        slots = slots.clamp(max=self.no_slot)
        filled = self.filled.gather(1, slots) & inside
        # 0 for filled, 1 for open, 2 behind the window; stable, so that each group stays in position order.
        order = torch.where(filled, 0, torch.where(inside, 1, 2)).argsort(dim=-1, stable=True)
        slots = slots.gather(1, order)
        num_filled, num_open = filled.sum(-1), (inside & ~filled).sum(-1)
        holds_token = torch.arange(width, device=slots.device) < num_filled[:, None]
        asked = torch.arange(min(policy.window_size, width), device=slots.device)
        is_asked = asked < num_open[:, None]
        asked = (asked + num_filled[:, None]).clamp(max=width - 1)
        return WindowQueries(
            input_ids=torch.where(holds_token, self.tokens.gather(1, slots), policy.mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_text=torch.zeros_like(self.start),
            asked=asked,
            asked_slots=slots.gather(1, asked),
            is_asked=is_asked,
        )

    def count_forward(self, queries: WindowQueries) -> None:
        self.forwards = self.forwards + self.alive
        self.window_queries = self.window_queries + self.num_queries

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, readers: TextReaders | None
    ) -> torch.Tensor:
        """Fills the open slots that their entropy selects; returns which asked slots nothing can fill."""

        def read(logits: torch.Tensor, places: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            if policy.left_to_right:
                return (entropy_of(logits),)
            noise = None if places is None else policy.noise.flatten(0, 1)[places]
            return entropy_of(logits), *choose_tokens(processed(logits, policy.processors), noise)

        places = () if policy.noise is None else (noise_places(policy.noise, self.batch_rows, queries.asked_slots),)
        entropy, *chosen = over_slots(read, logits, *places)
        selected = select_slots(
            entropy, queries.asked_slots, queries.is_asked, policy.entropy_threshold, policy.distance_penalty
        )
        if policy.left_to_right:
            selected, tokens = readers.choose_run(self, queries, selected, logits)
            impossible = torch.zeros_like(selected)
        else:
            tokens, is_possible = chosen
            impossible = selected & ~is_possible
        self.put_tokens(queries.asked_slots, selected, tokens)
        if readers is not None:
            readers.note_filled(self, queries, selected, logits)
        return impossible

    def commit(self, num_run: torch.Tensor) -> torch.Tensor:
        """Commits the leading slots; returns how many of the window's queries stay in the cache."""
        num_kept = self.num_leading
        self.start = self.start + num_kept
        return num_kept

    def refill(self, num_run: torch.Tensor, policy: Policy) -> None:
        """The next forward commits the new run. As many open slots join the window, up to the limit.

        The window of a row that has ended becomes empty.
        """
        self.num_leading = num_run * self.may_commit(num_run)
        end = (self.end + self.num_leading).clamp(max=self.limit)
        self.end = torch.where(self.alive, end, self.start)

    def may_commit(self, num_run: torch.Tensor) -> torch.Tensor:
        return self.alive


@dataclass
class BlockwiseWindow(StreamingWindow):
    """A window that commits only when every slot of it is filled: the paper's ablation."""

    def may_commit(self, num_run: torch.Tensor) -> torch.Tensor:
        return self.alive & (num_run == self.end - self.start)
