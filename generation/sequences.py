"""The sequences of a call, the settings of its steps, and the queries of a forward pass: plain tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LogitsProcessorList

from wedlm.generation.sampling import SlotNoise, refuse_impossible

NO_SLOT = 2**62
NO_TOKEN = -1  # in columns of a prompt that hold none, and where there is no draft


class Sequences(NamedTuple):
    """What every decoding knows of each sequence: its prompt, and the new tokens behind it.

    Slot s is the place of a sequence's new token s, at position prompt length + s. A token is final when it and all
    before it stay as they are. It is committed when its key and value stay in the cache, which takes a forward pass
    over it; until then it is pending. A step replaces tensors, but for `tokens`, into which it writes.
    """

    prompt: Tensor  # [batch, columns]: right-aligned behind NO_TOKEN
    tokens: Tensor  # [batch, slots + 1]; masked writes go to the last column, which is no slot
    prompt_lengths: Tensor  # [batch], as all that follow
    limit: Tensor  # max_new_tokens; there may be more slots
    number: Tensor  # which sequence of the call this is
    num_committed: Tensor  # committed new tokens
    num_final: Tensor  # final new tokens, pending ones included; `num_committed` once the sequence has ended
    num_queries: Tensor  # queries that the next forward pass needs, behind the prompt
    num_tokens: Tensor  # tokens of the text so far, an end token included
    is_alive: Tensor  # whether the text is still incomplete
    forwards: Tensor  # forward passes in which it was alive
    window_queries: Tensor  # queries in all of them

    @classmethod
    def of_prompts(cls, prompt: Tensor, lengths: Tensor, max_new_tokens: int, blank: int) -> "Sequences":
        batch, zeros = len(lengths), torch.zeros_like(lengths)
        return cls(
            prompt=prompt,
            tokens=lengths.new_full((batch, max_new_tokens + 1), blank),
            prompt_lengths=lengths,
            limit=zeros + max_new_tokens,
            number=torch.arange(batch, device=lengths.device),
            num_committed=zeros,
            num_final=zeros,
            num_queries=zeros,
            num_tokens=zeros,
            is_alive=~zeros.bool(),
            forwards=zeros,
            window_queries=zeros,
        )

    @property
    def scratch_slot(self) -> int:
        return self.tokens.shape[1] - 1

    @property
    def num_pending(self) -> Tensor:
        return self.num_final - self.num_committed

    @property
    def num_open(self) -> Tensor:
        """The number of slots that are still to be filled; none where the text is complete."""
        return (self.limit - self.num_final) * self.is_alive

    def write(self, slots: Tensor, selected: Tensor, tokens: Tensor) -> Tensor:
        """Writes `tokens` into the selected ones of `slots`, all `[batch, n]`; returns where it wrote."""
        slots = slots.masked_fill(~selected, self.scratch_slot)
        self.tokens.scatter_(1, slots, tokens)
        return slots

    def counted(self, takes_part: Tensor) -> "Sequences":
        """Counts a forward pass for those that take part in it."""
        num_queries = self.window_queries + takes_part * self.num_queries
        return self._replace(forwards=self.forwards + takes_part, window_queries=num_queries)

    def ended(self, new: Tensor, num_new: Tensor, settings: "Settings") -> "Sequences":
        """Ends those with an end token among their `num_new` new final tokens, and those at their limit.

        `new` `[batch, n]` are the tokens behind those that were final before; the first `num_new` of them are so now.
        """
        distance = settings.arange[1 : new.shape[1] + 1]
        end = distance.masked_fill((new[..., None] != settings.end_tokens).all(-1), NO_SLOT).amin(-1)
        most, num_known = torch.minimum(self.num_final + end, self.limit), self.num_final + num_new
        return self._replace(
            num_tokens=torch.where(self.is_alive, torch.minimum(most, num_known), self.num_tokens),
            is_alive=self.is_alive & (num_known < most),
        )

    def committed_text(self, longest: int) -> "Text":
        """The prompts, left-aligned, each with its committed tokens behind it; the longest of them has `longest`."""
        text = torch.cat([self.prompt, self.tokens], dim=-1)
        column = torch.arange(longest, device=text.device) + (self.prompt.shape[1] - self.prompt_lengths)[:, None]
        lengths = self.prompt_lengths + self.num_committed
        return Text(text.gather(1, column.clamp(max=text.shape[1] - 1)), lengths, torch.zeros_like(lengths))


def wider(per_slot: Tensor, num_slots: int, blank: int = 0) -> Tensor:
    """`per_slot`, with a column for each slot, made `num_slots` wide; the scratch column comes anew."""
    return pad(per_slot[:, :-1], (0, num_slots + 2 - per_slot.shape[1]), value=blank)


def statistics(num_tokens: Tensor, forwards: Tensor, window_queries: Tensor) -> dict[str, Any]:
    """The three counts of `WeDLMGenerateOutput`, from `[batch]` each."""
    return {
        "forwards": forwards,
        "tokens_per_forward": num_tokens / forwards,
        "prefix_cacheability": num_tokens / torch.maximum(window_queries, num_tokens),
    }


class Settings(NamedTuple):
    """How the steps of a call decode. (A tensor is what may have another value in the same captured step.)"""

    window_size: int  # the most slots behind the committed text that a step decides
    mask_token_id: int | None  # None: the model has no MASK
    masks_shift: bool  # whether a MASK predicts the token behind it, as a token does, and not that of its own slot
    end_tokens: Tensor  # [n], empty where there is none
    processors: LogitsProcessorList
    processors_read_text: bool  # so that the callbacks choose tokens one after another, each behind those before it
    arange: Tensor  # [2 * window_size + 1]: 0, 1, 2, ..., which no step has to make
    noise: SlotNoise | None  # None: no tokens are drawn
    strategy: "Strategy"
    rule: Any  # the parameters of the strategy

    @property
    def values(self) -> tuple:
        """All of them in one tuple, those of the rule in its place."""
        return (*self[:-1], *self.rule)

    @property
    def blank(self) -> int:
        """What stands where there is not a token yet."""
        return 0 if self.mask_token_id is None else self.mask_token_id


class Strategy(NamedTuple):
    """A decoding: functions over a `State`, whose `kept` is a NamedTuple of tensors of its own.

    They return states anew, and write in place only into tensors with a column for each slot; the first one of `kept`
    is such a tensor.
    """

    rule: Callable  # (config, window_size, query_cost, device) -> `Settings.rule`
    begin: Callable  # (sequences, settings) -> the state before the first forward pass
    queries: Callable  # (state, width, settings) -> those of the next forward pass, `width` for each sequence
    # (state, queries, logits, settings, callbacks) -> (state, new, num_new, is_possible): gives slots tokens. The
    # first `num_new` `[batch]` of the tokens `new` `[batch, n]` follow the final ones without a gap (`commit` says
    # which are final now); `is_possible` `[batch, m]` is False for those of the first m predicted slots that got a
    # token without a finite score.
    choose: Callable
    # (state, num_new, settings, num_rows) -> (state, num_kept): says which queries stay in the cache, the first
    # `num_kept` `[batch]`, and plans the next forward pass, over `num_rows` rows.
    commit: Callable
    most_queries: Callable  # (settings) -> the most queries of a sequence in a later forward pass
    # (state) -> the text of one sequence with its drafts, and which of these tokens are no guesses; or None, where
    # `choose` has shown them
    guesses: Callable
    counts: Callable  # (state, window_size) -> statistics of the output, `[batch, ...]` each
    # (state, settings) -> the queries behind the prompt in the first forward pass; by default none
    first_queries: Callable = lambda state, settings: Queries.none(state.sequences)


# --- The state of a call, row by row ---


class State(NamedTuple):
    """What steps change, but for the cache: tensors with a row for each sequence."""

    sequences: Sequences
    kept: Any  # what the strategy keeps beside them, a NamedTuple

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with every tensor changed."""
        return State(Sequences(*map(change, self.sequences)), self.kept._make(map(change, self.kept)))

    def select(self, rows: Tensor) -> "State":
        return self.map(lambda tensor: tensor[rows])

    def with_room(self, num_slots: int, num_columns: int, blank: int) -> "State":
        """The same with room for so many slots and columns of the prompt, enough for those in use."""
        kept = self.kept._make((wider(self.kept[0], num_slots), *self.kept[1:]))
        more, (prompt, tokens) = num_columns - self.sequences.prompt.shape[1], self.sequences[:2]
        prompt, tokens = pad(prompt, (more, 0), value=NO_TOKEN), wider(tokens, num_slots, blank)
        return State(self.sequences._replace(prompt=prompt, tokens=tokens), kept)

    @property
    def room(self) -> tuple[int, int]:
        """The number of slots, and of columns of the prompt."""
        return self.sequences.scratch_slot, self.sequences.prompt.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.sequences, *self.kept)


def joined(states: list[State]) -> State:
    """The rows of all states, which have the same room, in one."""
    parts = zip(*states, strict=True)
    return State(*(each[0]._make(map(torch.cat, zip(*each, strict=True))) for each in parts))


class Status(NamedTuple):
    """What the host reads after each step: a list over the sequences for each field."""

    is_alive: list[int]  # 0 or 1
    num_queries: list[int]  # of the next forward pass
    num_committed: list[int]  # the prompt included
    impossible: list[int]  # the first slot for which no token had a finite score, or NO_SLOT

    @staticmethod
    def tensor(sequences: Sequences, predicted_slots: Tensor, is_possible: Tensor) -> Tensor:
        """The status as one tensor, `[4, batch]`; `is_possible` is False where no score was finite."""
        first = predicted_slots[:, : is_possible.shape[1]].masked_fill(is_possible, NO_SLOT).amin(-1)
        num_committed = sequences.prompt_lengths + sequences.num_committed
        return torch.stack([sequences.is_alive, sequences.num_queries, num_committed, first])

    @classmethod
    def read(cls, status: list[list[int]], sequences: Sequences) -> "Status":
        """The status as the host has read it; refuses to go on if no token had a finite score for some slot."""
        read = cls(*status)
        for i, slot in enumerate(read.impossible):
            if slot != NO_SLOT:
                refuse_impossible(int(sequences.number[i]), int(sequences.prompt_lengths[i]) + slot)
        return read


# --- Queries ---


class Text(NamedTuple):
    """Tokens of every sequence, left-aligned."""

    tokens: Tensor  # [batch, length]
    lengths: Tensor  # [batch]
    positions: Tensor  # [batch]: the position of each one's first token


class Queries(NamedTuple):
    """The queries of one forward pass: text in front, where there is any, then tokens of the window, then MASKs.

    A step reads the logits of some queries only, each of which predicts the token of one slot. Sequences with fewer
    queries than others end in some that nothing reads.
    """

    input_ids: Tensor  # [batch, queries]
    position_ids: Tensor  # [batch, queries], for RoPE
    logits_indices: Tensor  # [batch, predicted]: the queries whose logits are read
    predicted_slots: Tensor  # [batch, predicted]: the slot that each predicts
    is_predicted: Tensor  # [batch, predicted]: False behind a sequence's last one
    # [batch, queries]: Queries with the same number n are a branch: each sees the cache, the first n queries, and
    # those of its branch up to itself. None: each sees all before it.
    visible_prefix: Tensor | None = None
    num_text: Tensor | None = None  # [batch]: the number of leading queries that hold text
    num_needed: Tensor | None = None  # [batch, 1]: the number of leading queries that anything reads; None: all

    @classmethod
    def of_text(cls, text: Text) -> "Queries":
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

    @classmethod
    def none(cls, sequences: Sequences) -> "Queries":
        """No queries of their own: the last token of the text in front predicts the first slot."""
        none = sequences.tokens[:, :0]
        return cls(
            input_ids=none,
            position_ids=none,
            logits_indices=torch.full_like(sequences.number, -1)[:, None],
            predicted_slots=sequences.num_committed[:, None],
            is_predicted=torch.ones_like(sequences.is_alive)[:, None],
            num_needed=torch.zeros_like(sequences.number)[:, None],
        )

    def behind(self, text: Text) -> "Queries":
        """These queries with those of `text` in front of them, without a gap in any row."""
        width, num_queries = text.tokens.shape[1], self.input_ids.shape[1]
        query = torch.arange(width + num_queries, device=self.input_ids.device)
        lengths = text.lengths[:, None]
        # `source` is the query's column in [text ; window]. Behind the window its last query is repeated, unseen.
        source = torch.where(query < lengths, query, query - lengths + width).clamp(max=width + num_queries - 1)
        in_front, seen = Queries.of_text(text), self.visible_prefix
        if seen is not None:  # (Tokens of the window see all of the text in front; a branch sees n queries more.)
            seen = (pad(seen, (width, 0)).gather(1, source) + lengths).masked_fill(query < lengths, 0)
        return self._replace(
            input_ids=torch.cat([in_front.input_ids, self.input_ids], dim=-1).gather(1, source),
            position_ids=torch.cat([in_front.position_ids, self.position_ids], dim=-1).gather(1, source),
            logits_indices=(self.logits_indices + lengths).clamp(min=0),
            visible_prefix=seen,
            num_text=text.lengths,
            num_needed=None if self.num_needed is None else lengths + self.num_needed,
        )

    def for_forward(self, num_queries: int, num_predicted: int) -> "Queries":
        """What a forward pass reads of these, with as many queries and logits more as that takes, unseen."""

        def wider(tensor: Tensor, width: int) -> Tensor:
            return pad(tensor, (0, width - tensor.shape[1]))

        return self._replace(
            input_ids=wider(self.input_ids, num_queries),
            position_ids=wider(self.position_ids, num_queries),
            logits_indices=wider(self.logits_indices, num_predicted),
            predicted_slots=None,
            is_predicted=None,
            visible_prefix=None if self.visible_prefix is None else wider(self.visible_prefix, num_queries),
            num_needed=None,
        )

    def to(self, device: torch.device) -> "Queries":
        return Queries(*(None if tensor is None else tensor.to(device) for tensor in self))
