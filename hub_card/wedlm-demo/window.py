"""The new tokens of every row, the window of slots being decided, and the queries of one forward over them."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch.nn.functional import pad

from .policy import Policy

NO_SLOT = 2**62
NO_TOKEN = -1  # in columns of a prompt that hold none


class Text(NamedTuple):
    """Tokens of every row, left-aligned.

    Args:
        tokens (`torch.LongTensor` of shape `(batch, length)`): A row's tokens, anything behind them.
        lengths (`torch.LongTensor` of shape `(batch,)`): The number of tokens of each row.
        positions (`torch.LongTensor` of shape `(batch,)`): The position of each row's first token.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor


class WindowQueries(NamedTuple):
    """The queries of one forward: text in front, where there is any, then tokens of the window, then MASKs.

    A step reads the logits of some queries only. It asks these queries, each about one slot. Rows with fewer queries
    than others end in some that nothing reads.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch, queries)`): A token, or MASK.
        position_ids (`torch.LongTensor` of shape `(batch, queries)`): The position of each query, for RoPE.
        num_text (`torch.LongTensor` of shape `(batch,)`): The number of leading queries that hold the prompt's text.
        asked (`torch.LongTensor` of shape `(batch, asked)`): The index of each asked query.
        asked_slots (`torch.LongTensor` of shape `(batch, asked)`): The slot that each is asked about.
        is_asked (`torch.BoolTensor` of shape `(batch, asked)`): False behind a row's last asked query.
        queries_seen (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
            How many leading queries a query sees. Behind those it sees itself, and the queries before it with the
            same number. None: it sees all before it.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    num_text: torch.Tensor
    asked: torch.Tensor
    asked_slots: torch.Tensor
    is_asked: torch.Tensor
    queries_seen: torch.Tensor | None = None

    @classmethod
    def of_text(cls, text: Text) -> "WindowQueries":
        """Queries of text alone, of which none is asked."""
        no_slot = torch.zeros_like(text.lengths)[:, None]
        return cls(
            input_ids=text.tokens,
            position_ids=text.positions[:, None] + torch.arange(text.tokens.shape[1], device=no_slot.device),
            num_text=text.lengths,
            asked=no_slot,
            asked_slots=no_slot,
            is_asked=no_slot.bool(),
        )

    def behind(self, text: Text) -> "WindowQueries":
        """These queries with those of `text` in front of them, without a gap in any row."""
        width, num_queries = text.tokens.shape[1], self.input_ids.shape[1]
        query = torch.arange(width + num_queries, device=self.input_ids.device)
        lengths = text.lengths[:, None]
        # `source` is the query's place in [text ; window]. Behind the window its last query is repeated, unseen.
        source = (query - lengths + width).clamp(max=width + num_queries - 1)
        source = torch.where(query < lengths, query, source)
        in_front = WindowQueries.of_text(text)
        queries_seen = self.queries_seen
        if queries_seen is not None:
            queries_seen = pad(queries_seen, (width, 0)).gather(1, source) + lengths
            queries_seen = torch.where(query < lengths, query + 1, queries_seen)
        return self._replace(
            input_ids=torch.cat([in_front.input_ids, self.input_ids], dim=-1).gather(1, source),
            position_ids=torch.cat([in_front.position_ids, self.position_ids], dim=-1).gather(1, source),
            num_text=text.lengths,
            asked=(self.asked + lengths).clamp(min=0),
            queries_seen=queries_seen,
        )

    def to(self, device: torch.device) -> "WindowQueries":
        if self.input_ids.device == device:
            return self
        return WindowQueries(*(None if tensor is None else tensor.to(device) for tensor in self))


class Status(NamedTuple):
    """The state of a window that the host reads after each step: a list over the rows for each field.

    Args:
        alive (`list[bool]`): Whether the row's text is still incomplete.
        num_queries (`list[int]`): The number of queries that the row needs in the next forward.
        num_committed (`list[int]`): The number of the row's committed tokens, the prompt included.
        impossible (`list[int]`): The first slot for which no token had a finite score, or NO_SLOT.
    """

    alive: list[bool]
    num_queries: list[int]
    num_committed: list[int]
    impossible: list[int]


@dataclass
class Window:
    """The new tokens of every row. Slot s of a row is the place of its new token s, at position prompt + s.

    Slots before `start` are committed. The window begins at `start`: first `num_leading` slots whose tokens the next
    forward commits, then slots that are not final. Subclasses say how slots become final.

    Tensors are replaced, never written into, except the `PER_SLOT` ones: `put_tokens` and `verify` write in
    place.

    Args:
        tokens (`torch.LongTensor` of shape `(batch, slots + 1)`): The token of each slot, MASK where there is none.
            The last column stands for no slot: a row with nothing to write at some place writes there.
        filled (`torch.BoolTensor` of shape `(batch, slots + 1)`): Whether the slot has its token.
        prompt_lengths (`torch.LongTensor` of shape `(batch,)`): Tokens of the prompt.
        limit (`torch.LongTensor` of shape `(batch,)`): max_new_tokens; there may be more slots.
        batch_rows (`torch.LongTensor` of shape `(batch,)`): The row's index in the batch of the call.
        start (`torch.LongTensor` of shape `(batch,)`): The number of committed slots.
        num_leading (`torch.LongTensor` of shape `(batch,)`): The number of slots from `start` on that the next forward
            commits.
        num_tokens (`torch.LongTensor` of shape `(batch,)`): Tokens of the text so far, an end token included.
        alive (`torch.BoolTensor` of shape `(batch,)`): Whether the text is still incomplete.
        forwards (`torch.LongTensor` of shape `(batch,)`): Forwards in which the row was alive.
        window_queries (`torch.LongTensor` of shape `(batch,)`): Queries of the window in all these forwards.
    """

    tokens: torch.Tensor
    filled: torch.Tensor
    prompt_lengths: torch.Tensor
    limit: torch.Tensor
    batch_rows: torch.Tensor
    start: torch.Tensor
    num_leading: torch.Tensor
    num_tokens: torch.Tensor
    alive: torch.Tensor
    forwards: torch.Tensor
    window_queries: torch.Tensor

    PER_SLOT: ClassVar = ("tokens", "filled")
    PER_COLUMN: ClassVar = ()  # fields with a column for each of the prompt's

    @classmethod
    def opened(cls, prompt_lengths: torch.Tensor, max_new_tokens: int, policy: Policy) -> "Window":
        """The window before the first forward."""
        batch, device = len(prompt_lengths), prompt_lengths.device

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(batch, *shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(max_new_tokens + 1) + policy.mask_token_id,
            filled=zeros(max_new_tokens + 1, dtype=torch.bool),
            prompt_lengths=prompt_lengths,
            limit=zeros() + max_new_tokens,
            batch_rows=torch.arange(batch, device=device),
            start=zeros(),
            num_leading=zeros(),
            num_tokens=zeros(),
            alive=~zeros(dtype=torch.bool),
            forwards=zeros(),
            window_queries=zeros(),
            **cls.opened_window(zeros, max_new_tokens, policy),
        )

    @classmethod
    def opened_window(cls, zeros: Callable, max_new_tokens: int, policy: Policy) -> dict[str, torch.Tensor]:
        """The fields that a subclass adds, before the first forward; `zeros(n)` makes a `[batch, n]`."""
        raise NotImplementedError

    # --- A subclass says how slots become final ---

    @property
    def num_queries(self) -> torch.Tensor:
        """The number of queries that each row needs in the next forward, `[batch]`."""
        raise NotImplementedError

    def first_queries(self, policy: Policy) -> WindowQueries:
        """The queries behind the prompt in the first forward."""
        return self.queries(policy.window_size, policy)

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The queries of the next forward, `width` of them in every row."""
        raise NotImplementedError

    def count_forward(self, queries: WindowQueries) -> None:
        """Counts a forward over these queries."""
        raise NotImplementedError

    def fill(self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, readers) -> torch.Tensor:
        """Gives slots their tokens, from the logits of the asked queries; returns which asked slots nothing can fill.

        `readers` are the `TextReaders` of the call, or None.
        """
        raise NotImplementedError

    def commit(self, num_run: torch.Tensor) -> torch.Tensor:
        """Moves `start` behind the slots that the forward has made final; returns how many of its queries stay."""
        raise NotImplementedError

    def refill(self, num_run: torch.Tensor, policy: Policy) -> None:
        """Makes the window ready for the next forward."""
        raise NotImplementedError

    # --- Places ---

    @property
    def no_slot(self) -> int:
        return self.tokens.shape[1] - 1

    @property
    def behind_leading(self) -> torch.Tensor:
        """The slot behind those that the next forward commits, `[batch]`."""
        return self.start + self.num_leading

    # --- One step ---

    def put_tokens(self, slots: torch.Tensor, selected: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Fills the selected ones of `slots` with `tokens`, all `[batch, n]`, in place; returns where it wrote."""
        slots = slots.masked_fill(~selected, self.no_slot)
        self.tokens.scatter_(1, slots, tokens)
        self.filled.scatter_(1, slots, selected)
        return slots

    def new_run(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first `width` undecided slots, and which of them are filled with no open slot before them.

        Both are `[batch, width]`; the second is of integers.
        """
        slots = self.behind_leading[:, None] + torch.arange(width, device=self.start.device)
        slots = slots.clamp(max=self.no_slot)
        return slots, self.filled.gather(1, slots).cumprod(-1)

    def end_at(self, end_tokens: torch.Tensor, slots: torch.Tensor, in_run: torch.Tensor) -> None:
        """Ends rows whose new run, as `new_run` gives it, holds an end token or reaches the limit."""
        is_end = (self.tokens.gather(1, slots)[..., None] == end_tokens).any(-1) * in_run
        has_end = is_end.any(-1)
        num_tokens = slots[:, 0] + torch.where(has_end, is_end.argmax(-1) + 1, in_run.sum(-1))
        self.num_tokens = torch.where(self.alive, num_tokens, self.num_tokens)
        self.alive = self.alive & ~has_end & (num_tokens < self.limit)

    def status(self, asked_slots: torch.Tensor, impossible: torch.Tensor) -> torch.Tensor:
        """The `Status` of every row as one tensor; the asked slots that nothing can fill are `impossible`."""
        first = torch.where(impossible, asked_slots[:, : impossible.shape[1]], NO_SLOT).amin(-1)
        return torch.stack([self.alive, self.num_queries, self.prompt_lengths + self.start, first])

    # --- Rows and slots in memory ---

    @property
    def num_columns(self) -> int:
        """The number of columns of the prompt that the window keeps."""
        return max([getattr(self, name).shape[1] for name in self.PER_COLUMN], default=0)

    def with_room(self, num_slots: int, num_columns: int, mask_token_id: int) -> "Window":
        """The same window with room for so many slots and columns of the prompt, enough for those in use."""
        more = num_slots - self.no_slot
        blank = dict.fromkeys(self.PER_SLOT, 0) | {"tokens": mask_token_id}
        # The last column is left out and comes anew: it holds what was written for no slot.
        wider = {n: pad(getattr(self, n)[:, :-1], (0, more + 1), value=blank[n]) for n in blank}
        more = num_columns - self.num_columns
        wider |= {n: pad(getattr(self, n), (more, 0), value=NO_TOKEN) for n in self.PER_COLUMN}
        return replace(self, **wider)

    def select(self, rows: torch.Tensor) -> "Window":
        """The window of these rows alone."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def put(self, part: "Window") -> None:
        """Undoes `select`: writes the rows of `part` back."""
        for field in fields(self):
            values = getattr(self, field.name).clone()
            values[part.batch_rows] = getattr(part, field.name)
            setattr(self, field.name, values)

    def committed_text(self, prompt: torch.Tensor, longest: int) -> Text:
        """The prompts, left-aligned, each with its committed tokens behind it; the longest of them has `longest`."""
        prompt_lengths = self.prompt_lengths[:, None]
        place = torch.arange(longest, device=prompt.device)
        source = torch.where(place < prompt_lengths, place, place - prompt_lengths + prompt.shape[1])
        text = torch.cat([prompt[self.batch_rows], self.tokens], dim=-1)
        text = text.gather(1, source.clamp(max=text.shape[1] - 1))
        return Text(text, self.prompt_lengths + self.start, torch.zeros_like(self.start))

    def counts(self) -> dict[str, torch.Tensor]:
        """The statistics of an output, `[batch, ...]` each."""
        return statistics(self.num_tokens, self.forwards, self.window_queries)


def statistics(
    num_tokens: torch.Tensor, forwards: torch.Tensor, window_queries: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The three counts of `WeDLMGenerateOutput`, from `[batch]` each."""
    return {
        "forwards": forwards,
        "tokens_per_forward": num_tokens / forwards,
        "prefix_cacheability": num_tokens / torch.maximum(window_queries, num_tokens),
    }
