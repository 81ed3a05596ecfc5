"""The rows of a running batch that have the same settings, and what one forward does to them."""

from collections.abc import Container, Hashable
from copy import copy
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from wedlm.batching.prepared_call import PreparedCall
from wedlm.batching.shared_cache import compacted
from wedlm.generation.callbacks import Callbacks
from wedlm.generation.decoding import move_on, opened
from wedlm.generation.sampling import SlotNoise
from wedlm.generation.validation import NoTokenError, named_weights, refuse_impossible
from wedlm.generation.window import NO_SLOT, Policy, Window, WindowQueries


class RowOutput(NamedTuple):
    """What a step has brought a row.

    Args:
        name (`Hashable`): The name of the row.
        tokens (`list[int]`): Its further final tokens.
        has_ended (`bool`): Whether the text ends here.
        error (`Exception`, *optional*): Why the row has failed.
    """

    name: Hashable
    tokens: list[int]
    has_ended: bool
    error: Exception | None = None


@dataclass
class BatchRow:
    """A row as the host knows it.

    Args:
        name (`Hashable`): Its name.
        place (`int`): Its place in the cache.
        tokens (`list[int]`): Its text: the prompt, and the final tokens.
        prompt_length (`int`): The tokens of the prompt.
        max_new_tokens (`int`): The most new tokens.
        noise_bytes (`int`): The bytes of its noise.
        num_queries (`int`): The queries that it needs in the next forward.
        num_committed (`int`): The tokens in the cache.
        is_reusable (`bool`): Whether others may take over its keys and values.
    """

    name: Hashable
    place: int
    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    noise_bytes: int = 0
    num_queries: int = 1
    num_committed: int = 0
    is_reusable: bool = True

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass
class SettingsGroup:
    """Rows with one policy, in one window. A row whose text is read by somebody has a group of its own.

    Args:
        key (`Hashable`): The settings; rows of equal keys share a group. None: nobody joins.
        policy (`Policy`): The settings as steps read them.
        window (`Window`): The rows.
        rows (`list[BatchRow]`): What the host knows of each row.
        callbacks (`Callbacks`, *optional*): The callbacks of the one row.
    """

    key: Hashable
    policy: Policy
    window: Window
    rows: list[BatchRow]
    callbacks: Callbacks | None

    @classmethod
    def of(cls, name: Hashable, place: int, call: PreparedCall) -> "SettingsGroup":
        """The group of one row."""
        generator = torch.Generator(call.call.input_ids.device).manual_seed(call.seed)
        policy, window, callbacks = opened(call.call, generator)
        tokens = list(call.tokens)
        row = BatchRow(name, place, tokens, len(tokens), call.max_new_tokens, call.noise_bytes)
        row.num_queries = int(window.num_queries)
        return cls(call.key, policy, window, [row], callbacks)

    @property
    def places(self) -> list[int]:
        return [row.place for row in self.rows]

    # --- Rows come and go ---

    @classmethod
    def joined(cls, groups: list["SettingsGroup"]) -> "SettingsGroup":
        """The rows of groups of equal keys, in one group."""
        first, rows = groups[0], [row for group in groups for row in group.rows]
        num_slots = max(row.max_new_tokens for row in rows)
        num_columns = max(row.prompt_length for row in rows) if first.window.num_columns else 0
        size = num_slots, num_columns, first.policy.blank
        window = joined_windows([group.window.with_room(*size) for group in groups])
        policy = first.policy
        if policy.noise is not None:
            policy = policy._replace(noise=joined_noise([group.policy.noise for group in groups]))
        return cls(first.key, policy, window, rows, None)

    def leave(self, names: Container[Hashable]) -> None:
        """Goes on without the rows of these names, whose places the last rows take."""
        leaving = [i for i, row in enumerate(self.rows) if row.name in names]
        if not leaving:
            return
        kept = compacted(len(self.rows), leaving)
        self.rows = [self.rows[row] for row in kept]
        if kept:
            index = torch.tensor(kept, device=self.window.start.device)
            self.window = self.window.select(index)
            self.window.batch_rows = torch.arange(len(kept), device=index.device)
            if self.policy.noise is not None:
                self.policy = self.policy._replace(noise=noise_of_rows(self.policy.noise, kept))

    # --- A step ---

    def draw_noise(self) -> None:
        """Draws the noise of all slots that the next forward can look at."""
        if self.policy.noise is not None:
            columns = [(r.num_committed - r.prompt_length, r.num_queries, r.max_new_tokens) for r in self.rows]
            self.policy.noise.draw_for_forward(list(range(len(columns))), *map(list, zip(*columns, strict=True)))

    def first_queries(self) -> WindowQueries:
        """The queries behind the prompts, in the first step of all rows."""
        return self.window.first_queries(self.policy)

    def queries(self) -> WindowQueries:
        return self.window.queries(max(1, *(row.num_queries for row in self.rows)), self.policy)

    def move_on(
        self, queries: WindowQueries, logits: torch.Tensor, num_rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the rows on by the logits of a forward, and plans the next one, over `num_rows` rows.

        Returns:
            `tuple[torch.LongTensor, torch.LongTensor]`: How many of the window's queries stay in the cache, `[rows]`,
            and what `read_report` reads, `[rows, numbers]`.
        """
        num_kept, status = move_on(self.policy, self.window, queries, logits, self.callbacks, num_rows)
        return num_kept, self.report(status)

    def report(self, status: torch.Tensor) -> torch.Tensor:
        """The status of each row, how many of its tokens are final, and those that the last step can have added."""
        window = self.window
        num_final = window.num_tokens.where(~window.alive, window.behind_leading)
        begin = torch.tensor([row.num_new for row in self.rows], device=status.device)
        slots = begin[:, None] + torch.arange(self.policy.window_size + 1, device=status.device)
        tokens = window.tokens.gather(1, slots.clamp(max=window.no_slot))
        return torch.cat([status.T, num_final[:, None], tokens], dim=-1)

    def read_report(self, values: list[list[int]], model: PreTrainedModel) -> list[RowOutput]:
        """Takes over what `report` says; returns what the step has brought each row."""
        outputs = []
        for row, (is_alive, num_queries, num_committed, impossible, num_final, *tokens) in zip(
            self.rows, values, strict=True
        ):
            row.num_queries, row.num_committed = num_queries, num_committed
            error = None
            if impossible != NO_SLOT:
                error, num_final = no_token_error(model, row.prompt_length + impossible), row.num_new
            new = tokens[: num_final - row.num_new]
            row.tokens += new
            outputs.append(RowOutput(row.name, new, error is not None or not is_alive, error))
        return outputs


def merged(groups: list[SettingsGroup]) -> list[SettingsGroup]:
    """The groups with those of equal keys joined."""
    of_key: dict[Hashable, list[SettingsGroup]] = {}
    for group in groups:
        of_key.setdefault(id(group) if group.key is None else group.key, []).append(group)
    return [SettingsGroup.joined(each) if len(each) > 1 else each[0] for each in of_key.values()]


def joined_windows(windows: list[Window]) -> Window:
    """The rows of windows of one kind, with room for as many slots and columns each, in one window."""
    names = [field.name for field in fields(windows[0])]
    window = type(windows[0])(**{name: torch.cat([getattr(each, name) for each in windows]) for name in names})
    window.batch_rows = torch.arange(len(window.start), device=window.start.device)
    return window


def joined_noise(parts: list[SlotNoise]) -> SlotNoise:
    """The noise of rows with generators of their own, one behind the other."""
    noise = copy(parts[0])
    noise.values = torch.cat([part.values for part in parts])
    noise.num_drawn = [number for part in parts for number in part.num_drawn]
    noise.generators = [generator for part in parts for generator in part.generators]
    return noise


def noise_of_rows(noise: SlotNoise, rows: list[int]) -> SlotNoise:
    selected = copy(noise)
    selected.values = noise.values[rows]
    selected.num_drawn = [noise.num_drawn[row] for row in rows]
    selected.generators = [noise.generators[row] for row in rows]
    return selected


def no_token_error(model: PreTrainedModel, position: int) -> Exception:
    """The error of a row in which no token can be chosen."""
    try:
        with named_weights(model):
            refuse_impossible(0, position)
    except (NoTokenError, ValueError) as error:
        return error
