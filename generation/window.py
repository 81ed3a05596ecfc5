"""The new tokens of every row, the window of slots being decided, and the queries of one forward over them."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList

from wedlm.generation.sampling import SlotNoise, reads_no_text
from wedlm.generation.transformers_internals import end_tokens_of
from wedlm.generation.validation import refuse_impossible

NO_SLOT = 2**62
NO_TOKEN = -1  # in columns of a prompt that hold none
MOST_MATCHED = 6  # last tokens that a look-up compares: longer matches say no more about the next one
HALF_MATCH = 3  # A looked up draft is taken to be accepted in one of two cases behind a match of so many tokens.


class Policy(NamedTuple):
    """How the steps of a call decode. (Tensors, where one compiled step serves all values.)"""

    window_size: int  # slots behind the committed text
    mask_token_id: int | None  # None: the model has no MASK, and drafts come from the text alone
    end_tokens: torch.Tensor  # [n], empty where there is none
    entropy_threshold: torch.Tensor | None  # [], in nats
    distance_penalty: torch.Tensor  # []
    processors: LogitsProcessorList
    processors_read_text: bool  # so that the callbacks choose tokens one after another, each behind those before it
    arange: torch.Tensor  # [2 * window_size + 1]: 0, 1, 2, ..., which no step has to make
    # [MOST_MATCHED + window_size]: the chance of a looked up draft by the length of the match, the drafts before it
    # included
    match_chances: torch.Tensor
    num_looked_up: int = 0  # the most drafts that are looked up in the text
    most_matched: int = MOST_MATCHED  # the most last tokens that are compared for that
    noise: SlotNoise | None = None  # where tokens are drawn
    # [], how far below the best score that of an accepted draft may be; None: only the best token is accepted
    acceptance_margin: torch.Tensor | None = None
    query_cost: float = 0.0  # what one more query costs, as a share of a forward with one

    @property
    def blank(self) -> int:
        """What stands where there is no token yet."""
        return 0 if self.mask_token_id is None else self.mask_token_id

    @classmethod
    def of(
        cls,
        generation_config: GenerationConfig,
        processors: LogitsProcessorList,
        window_size: int,
        mask_token_id: int | None,
        device: torch.device,
        query_cost: float = 0.0,
        noise: SlotNoise | None = None,
    ) -> "Policy":
        """Resolves the settings."""
        end_tokens, threshold = end_tokens_of(generation_config), generation_config.entropy_threshold
        most_matched, num_looked_up = generation_config.max_matching_ngram_size, generation_config.num_looked_up
        margin = -math.log(generation_config.acceptance_ratio)
        arange = torch.arange(2 * window_size + MOST_MATCHED + 1, device=device)
        matched = arange[: MOST_MATCHED + window_size].clamp(max=MOST_MATCHED)
        return cls(
            window_size=window_size,
            mask_token_id=mask_token_id,
            end_tokens=torch.empty(0, dtype=torch.long, device=device) if end_tokens is None else end_tokens,
            entropy_threshold=None if threshold is None else torch.full((), float(threshold), device=device),
            distance_penalty=torch.full((), float(generation_config.distance_penalty), device=device),
            processors=processors,
            processors_read_text=not all(map(reads_no_text, processors)),
            arange=arange[: 2 * window_size + 1],
            match_chances=matched / (matched + HALF_MATCH),
            num_looked_up=window_size - 1 if num_looked_up is None else num_looked_up,
            most_matched=MOST_MATCHED if most_matched is None else min(most_matched, MOST_MATCHED),
            noise=noise,
            acceptance_margin=torch.full((), margin, device=device) if margin > 0 else None,
            query_cost=query_cost,
        )


class Text(NamedTuple):
    """Tokens of every row, left-aligned."""

    tokens: torch.Tensor  # [batch, length]
    lengths: torch.Tensor  # [batch]
    positions: torch.Tensor  # [batch]: the position of each row's first token


class WindowQueries(NamedTuple):
    """The queries of one forward: text in front, where there is any, then tokens of the window, then MASKs.

    A step reads the logits of some queries only, each of which predicts the token of one slot. Rows with fewer queries
    than others end in some that nothing reads.
    """

    input_ids: torch.Tensor  # [batch, queries]
    position_ids: torch.Tensor  # [batch, queries], for RoPE
    logits_indices: torch.Tensor  # [batch, predicted]: the queries whose logits are read
    predicted_slots: torch.Tensor  # [batch, predicted]: the slot that each predicts
    is_predicted: torch.Tensor  # [batch, predicted]: False behind a row's last one
    # [batch, queries]: Queries with the same number are a branch, causal inside; a query also sees so many leading
    # queries of the forward. None: it sees all before it.
    visible_prefix: torch.Tensor | None = None
    num_text: torch.Tensor | None = None  # [batch]: the number of leading queries that hold text
    num_needed: torch.Tensor | None = None  # [batch, 1]: the number of leading queries that anything reads; None: all

    @classmethod
    def of_text(cls, text: Text) -> "WindowQueries":
        """Queries of text alone, which predict nothing."""
        no_slot = torch.zeros_like(text.lengths)[:, None]
        return cls(
            input_ids=text.tokens,
            position_ids=text.positions[:, None] + torch.arange(text.tokens.shape[1], device=no_slot.device),
            logits_indices=no_slot,
            predicted_slots=no_slot,
            is_predicted=no_slot.bool(),
            num_text=text.lengths,
            num_needed=text.lengths[:, None],
        )

    def behind(self, text: Text) -> "WindowQueries":
        """These queries with those of `text` in front of them, without a gap in any row."""
        width, num_queries = text.tokens.shape[1], self.input_ids.shape[1]
        query = torch.arange(width + num_queries, device=self.input_ids.device)
        lengths = text.lengths[:, None]
        # `source` is the query's place in [text ; window]. Behind the window its last query is repeated, unseen.
        source = (query - lengths + width).clamp(max=width + num_queries - 1)
        source = torch.where(query < lengths, query, source)
        in_front, seen = WindowQueries.of_text(text), self.visible_prefix
        if seen is not None:
            seen = (pad(seen, (width, 0)).gather(1, source) + lengths).masked_fill(query < lengths, 0)
        return self._replace(
            input_ids=torch.cat([in_front.input_ids, self.input_ids], dim=-1).gather(1, source),
            position_ids=torch.cat([in_front.position_ids, self.position_ids], dim=-1).gather(1, source),
            logits_indices=(self.logits_indices + lengths).clamp(min=0),
            visible_prefix=seen,
            num_text=text.lengths,
            num_needed=None if self.num_needed is None else lengths + self.num_needed,
        )

    def seeing_all_before(self) -> "WindowQueries":
        """The same queries, with `visible_prefix` where it was None."""
        return (
            self if self.visible_prefix is not None else self._replace(visible_prefix=torch.zeros_like(self.input_ids))
        )

    def to(self, device: torch.device) -> "WindowQueries":
        if self.input_ids.device == device:
            return self
        return WindowQueries(*(None if tensor is None else tensor.to(device) for tensor in self))


class Status(NamedTuple):
    """What the host reads of a window after each step: a list over the rows for each field."""

    alive: list[int]  # 0 or 1
    num_queries: list[int]  # of the next forward
    num_committed: list[int]  # the prompt included
    impossible: list[int]  # the first slot for which no token had a finite score, or NO_SLOT


@dataclass
class Window:
    """The new tokens of every row. Slot s of a row is the place of its new token s, at position prompt + s.

    Slots before `start` are committed. The window begins at `start`: first `num_leading` slots whose tokens the next
    forward commits, then slots that are not final. Subclasses say how slots become final.

    Tensors are replaced, never written into, except the `PER_SLOT` ones, which `fill` writes in place.
    """

    # [batch, slots + 1], `Policy.blank` where there is none; the last column is scratch: writes masked out go there
    tokens: torch.Tensor
    prompt_lengths: torch.Tensor  # [batch], as all that follow
    limit: torch.Tensor  # max_new_tokens; there may be more slots
    batch_rows: torch.Tensor  # the row's index in the batch of the call
    start: torch.Tensor  # the number of committed slots
    num_leading: torch.Tensor  # the number of slots from `start` on that the next forward commits
    num_tokens: torch.Tensor  # tokens of the text so far, an end token included
    alive: torch.Tensor  # whether the text is still incomplete
    forwards: torch.Tensor  # forwards in which the row was alive
    window_queries: torch.Tensor  # queries of the window in all these forwards

    PER_SLOT: ClassVar[tuple[str, ...]] = ("tokens",)
    PER_COLUMN: ClassVar[tuple[str, ...]] = ()  # fields with a column for each of the prompt's

    @classmethod
    def opened(
        cls, prompt_lengths: torch.Tensor, max_new_tokens: int, policy: Policy, prompt: torch.Tensor | None = None
    ) -> "Window":
        """The window before the first forward; a subclass may look drafts up in `prompt`, `[batch, columns]`."""
        batch, device = len(prompt_lengths), prompt_lengths.device

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(batch, *shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(max_new_tokens + 1) + policy.blank,
            prompt_lengths=prompt_lengths,
            limit=zeros() + max_new_tokens,
            batch_rows=torch.arange(batch, device=device),
            start=zeros(),
            num_leading=zeros(),
            num_tokens=zeros(),
            alive=~zeros(dtype=torch.bool),
            forwards=zeros(),
            window_queries=zeros(),
            **cls.own_fields(zeros, max_new_tokens, policy, prompt),
        )

    # --- A subclass says how slots become final ---

    @classmethod
    def own_fields(cls, zeros, max_new_tokens: int, policy: Policy, prompt: torch.Tensor | None) -> dict:
        """The fields that the subclass adds, before the first forward; `zeros(n)` makes a `[batch, n]`."""
        raise NotImplementedError

    @property
    def num_queries(self) -> torch.Tensor:
        """The number of queries that each row needs in the next forward, `[batch]`."""
        raise NotImplementedError

    def most_queries(self, policy: Policy) -> int:
        """The most queries that a row can need in a forward."""
        return 2 * policy.window_size

    def first_queries(self, policy: Policy) -> WindowQueries:
        """The queries behind the prompt in the first forward."""
        return self.queries(policy.window_size, policy)

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The queries of the next forward, `width` of them in every row."""
        raise NotImplementedError

    def count_forward(self, queries: WindowQueries) -> None:
        """Counts a forward over these queries."""
        raise NotImplementedError

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, callbacks
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gives slots their tokens, from the logits of the queries that predict them.

        Returns:
            `tuple[torch.LongTensor, torch.BoolTensor]`: The number of slots behind the leading ones that are filled
            without a gap, `[batch]`, and False for those of the first predicted slots for which no token had a finite
            score, `[batch, n]`.
        """
        raise NotImplementedError

    def advance(self, num_run: torch.Tensor, policy: Policy, num_rows: int) -> torch.Tensor:
        """Commits slots, and makes the window ready for the next forward, over `num_rows` rows.

        Returns how many of the forward's queries stay in the cache, `[batch]`.
        """
        raise NotImplementedError

    def show_drafts(self, stream) -> None:
        """Gives the drafts of the one row to a `TextStream`."""

    # --- Every window ---

    @property
    def scratch_slot(self) -> int:
        return self.tokens.shape[1] - 1

    @property
    def behind_leading(self) -> torch.Tensor:
        """The slot behind those that the next forward commits, `[batch]`."""
        return self.start + self.num_leading

    def put_tokens(self, slots: torch.Tensor, selected: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Fills the selected ones of `slots` with `tokens`, all `[batch, n]`, in place; returns where it wrote."""
        slots = slots.masked_fill(~selected, self.scratch_slot)
        self.tokens.scatter_(1, slots, tokens)
        return slots

    def end_at(self, num_run: torch.Tensor, policy: Policy) -> None:
        """Ends rows whose run holds an end token or reaches the limit."""
        first = self.behind_leading
        slots = first[:, None] + policy.arange[: policy.window_size]
        tokens = self.tokens.gather(1, slots.clamp(max=self.scratch_slot))
        end = slots.masked_fill((tokens[..., None] != policy.end_tokens).all(-1), NO_SLOT).amin(-1)
        most, num_known = torch.minimum(end + 1, self.limit), first + num_run
        self.num_tokens = torch.where(self.alive, torch.minimum(most, num_known), self.num_tokens)
        self.alive = self.alive & (num_known < most)

    def status(self, predicted_slots: torch.Tensor, is_possible: torch.Tensor) -> torch.Tensor:
        """The `Status` of every row as one tensor; `is_possible` is as `fill` returns it."""
        first = predicted_slots[:, : is_possible.shape[1]].masked_fill(is_possible, NO_SLOT).amin(-1)
        return torch.stack([self.alive, self.num_queries, self.prompt_lengths + self.start, first])

    def read_status(self, status: list[list[int]]) -> Status:
        """The status as the host reads it; refuses to go on if no token had a finite score for some slot."""
        read = Status(*status)
        for i, slot in enumerate(read.impossible):
            if slot != NO_SLOT:
                refuse_impossible(int(self.batch_rows[i]), int(self.prompt_lengths[i]) + slot)
        return read

    # --- Rows and slots in memory ---

    @property
    def num_columns(self) -> int:
        """The number of columns of the prompt that the window keeps."""
        return max([getattr(self, name).shape[1] for name in self.PER_COLUMN], default=0)

    def with_room(self, num_slots: int, num_columns: int, blank_token: int) -> "Window":
        """The same window with room for so many slots and columns of the prompt, enough for those in use."""
        more = num_slots - self.scratch_slot
        fill = dict.fromkeys(self.PER_SLOT, 0) | {"tokens": blank_token}
        # The scratch column is left out and comes anew.
        wider = {n: pad(getattr(self, n)[:, :-1], (0, more + 1), value=fill[n]) for n in fill}
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

    def counts(self) -> dict[str, Any]:
        """The statistics of an output, `[batch, ...]` each."""
        return statistics(self.num_tokens, self.forwards, self.window_queries)


def statistics(num_tokens: torch.Tensor, forwards: torch.Tensor, window_queries: torch.Tensor) -> dict[str, Any]:
    """The three counts of `WeDLMGenerateOutput`, from `[batch]` each."""
    return {
        "forwards": forwards,
        "tokens_per_forward": num_tokens / forwards,
        "prefix_cacheability": num_tokens / torch.maximum(window_queries, num_tokens),
    }
