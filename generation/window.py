from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch.nn.functional import pad

from wedlm.generation.stats import statistics


class Text(NamedTuple):
    """Tokens of every row, left-aligned, the first of them at `positions`."""

    tokens: torch.Tensor  # [batch, length]
    lengths: torch.Tensor  # [batch]
    positions: torch.Tensor  # [batch]


class WindowQueries(NamedTuple):
    """The rows of one forward: filled slots in position order, then a MASK per open slot in position order.

    Batch rows with a shorter window end in MASK rows that nothing reads.
    """

    input_ids: torch.Tensor  # [batch, rows]
    position_ids: torch.Tensor  # [batch, rows]
    num_final: torch.Tensor  # [batch]: how many leading rows depend on nothing but committed text
    open_rows: torch.Tensor  # [batch, slots]: the row of each open slot
    open_slots: torch.Tensor  # [batch, slots]: the slot itself
    is_open: torch.Tensor  # [batch, slots]: False behind the last open slot
    # [batch, rows]: how many rows from the first a row sees; of the others before it, those with the same number. None
    # where every row sees all before it.
    queries_seen: torch.Tensor | None = None

    @classmethod
    def of_text(cls, text: Text) -> "WindowQueries":
        """Rows of text alone."""
        no_slot = torch.zeros_like(text.lengths)[:, None]
        return cls(
            input_ids=text.tokens,
            position_ids=text.positions[:, None] + torch.arange(text.tokens.shape[1], device=no_slot.device),
            num_final=text.lengths,
            open_rows=no_slot,
            open_slots=no_slot,
            is_open=no_slot.bool(),
        )

    def behind(self, text: Text) -> "WindowQueries":
        """These rows with those of `text` in front."""
        length, num_rows = text.tokens.shape[1], self.input_ids.shape[1]
        rows = torch.arange(length + num_rows, device=self.input_ids.device)  # as in [text ; window]
        lengths = text.lengths[:, None]
        # Behind the window its last row comes again, where nothing sees it.
        source = (rows - lengths + length).clamp(max=length + num_rows - 1)
        source = torch.where(rows < lengths, rows, source)
        before = WindowQueries.of_text(text)
        return self._replace(
            input_ids=torch.cat([before.input_ids, self.input_ids], dim=-1).gather(1, source),
            position_ids=torch.cat([before.position_ids, self.position_ids], dim=-1).gather(1, source),
            num_final=self.num_final + text.lengths,
            open_rows=(self.open_rows + lengths).clamp(min=0),
            queries_seen=None
            if self.queries_seen is None
            else torch.where(
                rows < lengths, rows + 1, pad(self.queries_seen, (length, 0)).gather(1, source) + lengths
            ),
        )

    def to(self, device: torch.device) -> "WindowQueries":
        if self.input_ids.device == device:
            return self
        return WindowQueries(*(None if tensor is None else tensor.to(device) for tensor in self))


NO_SLOT = 2**62


class Status(NamedTuple):
    """What the host knows of a window, each `[batch]`."""

    alive: list[bool]
    num_rows: list[int]  # of the next forward
    committed: list[int]  # length of the text, the prompt included
    impossible: list[int]  # the first slot that nothing could fill, or NO_SLOT


@dataclass
class Window:
    """The new tokens of every row and the window of slots being filled. Slot s of a row is position prompt + s.

    Slots before `start` are committed, those from `start` to `end` are the window, each open or filled.
    """

    # A column for each slot, and one more: what is written for no slot goes there.
    tokens: torch.Tensor  # [batch, columns]: MASK where nothing was filled
    filled: torch.Tensor  # [batch, columns]
    prompt_lengths: torch.Tensor  # [batch]
    limit: torch.Tensor  # [batch]: max_new_tokens; there may be columns for more
    batch_rows: torch.Tensor  # [batch]: which rows of the whole batch these are
    start: torch.Tensor  # [batch]
    end: torch.Tensor  # [batch]
    num_leading: torch.Tensor  # [batch]: filled slots in front that the next forward commits
    num_tokens: torch.Tensor  # [batch]: length of the text so far, up to and including an end token
    alive: torch.Tensor  # [batch]
    forwards: torch.Tensor  # [batch]
    window_rows: torch.Tensor  # [batch]

    PER_SLOT: ClassVar = ("tokens", "filled")

    @classmethod
    def opened(cls, prompt_lengths: torch.Tensor, max_new_tokens: int, window_size: int, mask_token_id: int):
        """The first window: `window_size` open slots, at most max_new_tokens."""
        batch, device = len(prompt_lengths), prompt_lengths.device
        zeros = torch.zeros(batch, dtype=torch.long, device=device)
        return cls(
            tokens=torch.full((batch, max_new_tokens + 1), mask_token_id, device=device),
            filled=torch.zeros((batch, max_new_tokens + 1), dtype=torch.bool, device=device),
            prompt_lengths=prompt_lengths,
            limit=zeros + max_new_tokens,
            batch_rows=torch.arange(batch, device=device),
            start=zeros,
            end=zeros + window_size,
            num_leading=zeros,
            num_tokens=zeros,
            alive=zeros == 0,
            forwards=zeros,
            window_rows=zeros,
        )

    @property
    def no_slot(self) -> int:
        return self.tokens.shape[1] - 1

    def slots(self, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`width` slots from `start`: their numbers, which of them are in the window, which are filled."""
        slots = self.start[:, None] + torch.arange(width, device=self.start.device)  # [batch, width]
        inside = slots < self.end[:, None]
        slots = slots.clamp(max=self.no_slot)
        return slots, inside, self.filled.gather(1, slots) & inside

    def reorder(self, width: int, window_size: int, mask_token_id: int) -> WindowQueries:
        slots, inside, filled = self.slots(width)
        # 0 for filled, 1 for open, 2 behind the window; stable, so that each group stays in position order.
        order = torch.where(filled, 0, torch.where(inside, 1, 2)).argsort(dim=-1, stable=True)
        slots = slots.gather(1, order)
        num_filled, num_open = filled.sum(-1), (inside & ~filled).sum(-1)
        is_filled_row = torch.arange(width, device=slots.device) < num_filled[:, None]
        open_rows = torch.arange(min(window_size, width), device=slots.device)
        is_open = open_rows < num_open[:, None]
        open_rows = (open_rows + num_filled[:, None]).clamp(max=width - 1)
        return WindowQueries(
            input_ids=torch.where(is_filled_row, self.tokens.gather(1, slots), mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_final=self.num_leading,
            open_rows=open_rows,
            open_slots=slots.gather(1, open_rows),
            is_open=is_open,
        )

    @property
    def num_rows(self) -> torch.Tensor:
        """Of the next forward, `[batch]`."""
        return self.end - self.start

    def count_forward(self, rows: WindowQueries) -> None:
        self.forwards = self.forwards + self.alive
        self.window_rows = self.window_rows + self.num_rows

    def commit(self, num_final: torch.Tensor) -> torch.Tensor:
        """Moves on behind what is final now; returns how many rows that is, `num_final` having been so before."""
        self.start = self.start + self.num_leading
        return num_final

    def fill(self, slots: torch.Tensor, selected: torch.Tensor, tokens: torch.Tensor) -> None:
        """Puts `tokens` into the selected ones of `slots`, all `[batch, slots]`."""
        slots = torch.where(selected, slots, self.no_slot)
        self.tokens.scatter_(1, slots, tokens)
        self.filled.scatter_(1, slots, selected)

    def new_run(self, window_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first slots of the window, and which of them are filled with no open one before: `[batch, slots]`."""
        slots, _, filled = self.slots(window_size)
        return slots, filled.cumprod(-1)

    def end_at(
        self, end_tokens: torch.Tensor, slots: torch.Tensor, in_run: torch.Tensor, num_run: torch.Tensor
    ) -> None:
        """Ends rows whose leading run, of length `num_run`, holds an end token or reaches the limit."""
        is_end = (self.tokens.gather(1, slots)[..., None] == end_tokens).any(-1) * in_run
        has_end = is_end.any(-1)
        num_tokens = slots[:, 0] + torch.where(has_end, is_end.argmax(-1) + 1, num_run)
        self.num_tokens = torch.where(self.alive, num_tokens, self.num_tokens)
        self.alive = self.alive & ~has_end & (num_tokens < self.limit)

    def refill(self, num_run: torch.Tensor, blockwise: bool) -> None:
        """The leading run is to be committed, and as many slots are opened behind the window."""
        may_commit = self.alive & (num_run == self.end - self.start) if blockwise else self.alive
        self.num_leading = num_run * may_commit
        end = (self.end + self.num_leading).clamp(max=self.limit)
        self.end = torch.where(self.alive, end, self.start)

    def status(self, open_slots: torch.Tensor, impossible: torch.Tensor) -> torch.Tensor:
        """What the host wants to know of each row: see `Status`. Slots that nothing can fill are `impossible`."""
        first = torch.where(impossible, open_slots[:, : impossible.shape[1]], NO_SLOT).amin(-1)
        return torch.stack([self.alive, self.num_rows, self.prompt_lengths + self.start, first])

    def with_columns(self, columns: int, mask_token_id: int) -> "Window":
        """The same with this many columns, which must be enough for the slots in use."""
        more = columns - self.tokens.shape[1]
        blank = dict.fromkeys(self.PER_SLOT, 0) | {"tokens": mask_token_id}
        # The last column is left out and comes anew: what is in it was written for no slot.
        return replace(self, **{n: pad(getattr(self, n)[:, :-1], (0, more + 1), value=blank[n]) for n in blank})

    def counted(self) -> dict[str, torch.Tensor]:
        """What an output tells of the forwards, `[batch, ...]`."""
        return statistics(self.num_tokens, self.forwards, self.window_rows)

    def select(self, batch_rows: torch.Tensor) -> "Window":
        return type(self)(**{field.name: getattr(self, field.name)[batch_rows] for field in fields(self)})

    def put(self, part: "Window") -> None:
        """Undoes `select`: writes the rows of `part` back."""
        for field in fields(self):
            values = getattr(self, field.name).clone()
            values[part.batch_rows] = getattr(part, field.name)
            setattr(self, field.name, values)

    def committed_text(self, prompt: torch.Tensor, longest: int) -> Text:
        """The prompts, left-aligned, each with what is committed behind it, the longest of them `longest`."""
        prompt_lengths = self.prompt_lengths[:, None]
        columns = torch.arange(longest, device=prompt.device)
        source = torch.where(columns < prompt_lengths, columns, columns - prompt_lengths + prompt.shape[1])
        text = torch.cat([prompt[self.batch_rows], self.tokens], dim=-1)
        text = text.gather(1, source.clamp(max=text.shape[1] - 1))
        return Text(text, self.prompt_lengths + self.start, torch.zeros_like(self.start))
