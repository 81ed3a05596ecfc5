"""The rows of a running batch that have the same settings, and what one forward does to them."""

from collections.abc import Container, Hashable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from .decoding_run import DecodingRun
from .policy import Policy
from .prepared_call import PreparedCall
from .shared_cache import filled_up
from .slot_noise import SlotNoise
from .step import move_on
from .support import NoTokenError, named_weights, refuse_impossible
from .text_readers import TextReaders
from .window import NO_SLOT, Window, WindowQueries


class Progress(NamedTuple):
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
class LaneRow:
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
        is_source (`bool`): Whether others may take over its keys and values.
    """

    name: Hashable
    place: int
    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    noise_bytes: int = 0
    num_queries: int = 1
    num_committed: int = 0
    is_source: bool = True

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass
class Lane:
    """Rows with one policy, in one window. A row whose text is read by somebody has a lane of its own.

    Args:
        key (`Hashable`): The settings; rows of equal keys share a lane. None: nobody joins.
        policy (`Policy`): The settings as steps read them.
        window (`Window`): The rows.
        rows (`list[LaneRow]`): What the host knows of each row.
        noise (`SlotNoise`, *optional*): The noise of the rows, where tokens are drawn.
        readers (`TextReaders`, *optional*): Those who read the text of the one row.
        num_sharing (`int`, *optional*): The rows of the forwards that the policy plans for.
    """

    key: Hashable
    policy: Policy
    window: Window
    rows: list[LaneRow]
    noise: SlotNoise | None
    readers: TextReaders | None
    num_sharing: int | None = None

    @classmethod
    def of(cls, run: DecodingRun, name: Hashable, place: int, call: PreparedCall) -> "Lane":
        """The lane of one row."""
        tokens = list(call.tokens)
        row = LaneRow(name, place, tokens, len(tokens), call.max_new_tokens, call.noise_bytes)
        row.num_queries = int(run.window.num_queries)
        return cls(call.key, run.policy, run.window, [row], run.noise, run.readers)

    @property
    def places(self) -> list[int]:
        return [row.place for row in self.rows]

    # --- Rows come and go ---

    @classmethod
    def joined(cls, lanes: list["Lane"]) -> "Lane":
        """The rows of lanes of equal keys, in one lane."""
        first, rows = lanes[0], [row for lane in lanes for row in lane.rows]
        num_slots = max(row.max_new_tokens for row in rows)
        num_columns = max(row.prompt_length for row in rows) if first.window.num_columns else 0
        room = num_slots, num_columns, first.policy.mask_token_id
        window = Window.joined([lane.window.with_room(*room) for lane in lanes])
        noise, policy = None, first.policy
        if first.noise is not None:
            noise = SlotNoise.joined([lane.noise for lane in lanes])
            policy = policy._replace(noise=noise.values)
        return cls(first.key, policy, window, rows, noise, None)

    def leave(self, names: Container[Hashable]) -> None:
        """Goes on without the rows of these names, whose places the last rows take."""
        leaving = [i for i, row in enumerate(self.rows) if row.name in names]
        if not leaving:
            return
        kept = filled_up(len(self.rows), leaving)
        self.rows = [self.rows[row] for row in kept]
        if kept:
            index = torch.tensor(kept, device=self.window.start.device)
            self.window = self.window.select(index)
            self.window.batch_rows = torch.arange(len(kept), device=index.device)
            if self.noise is not None:
                self.noise = self.noise.select(kept)
                self.policy = self.policy._replace(noise=self.noise.values)

    # --- A step ---

    def share_with(self, num_rows: int) -> None:
        """Plans the next steps for forwards over so many rows."""
        if num_rows != self.num_sharing:
            self.num_sharing, self.policy = num_rows, self.policy.among(num_rows)

    def draw_noise(self) -> None:
        """Draws the noise of all slots that the next forward can look at."""
        if self.noise is not None:
            ends = [row.num_committed - row.prompt_length + row.num_queries + 1 for row in self.rows]
            ends = [min(end, row.max_new_tokens) for end, row in zip(ends, self.rows, strict=True)]
            self.noise.draw(list(range(len(ends))), ends)

    def first_queries(self) -> WindowQueries:
        """The queries behind the prompts, in the first step of all rows."""
        return self.window.first_queries(self.policy)

    def queries(self) -> WindowQueries:
        return self.window.queries(max(1, *(row.num_queries for row in self.rows)), self.policy)

    def move_on(self, queries: WindowQueries, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the rows on by the logits of a forward.

        Returns:
            `tuple[torch.LongTensor, torch.LongTensor]`: How many of the window's queries stay in the cache, `[rows]`,
            and what `note` reads, `[rows, numbers]`.
        """
        num_kept, status = move_on(self.policy, self.window, queries, logits, self.readers)
        return num_kept, self.look(status)

    def look(self, status: torch.Tensor) -> torch.Tensor:
        """The status of each row, how many of its tokens are final, and those that the last step can have added."""
        window = self.window
        num_final = window.num_tokens.where(~window.alive, window.behind_leading)
        begin = torch.tensor([row.num_new for row in self.rows], device=status.device)
        slots = begin[:, None] + torch.arange(self.policy.window_size + 1, device=status.device)
        tokens = window.tokens.gather(1, slots.clamp(max=window.no_slot))
        return torch.cat([status.T, num_final[:, None], tokens], dim=-1)

    def note(self, values: list[list[int]], model: PreTrainedModel) -> list[Progress]:
        """Notes what `look` has seen; returns what the step has brought each row."""
        progress = []
        for row, (is_alive, num_queries, num_committed, impossible, num_final, *tokens) in zip(
            self.rows, values, strict=True
        ):
            row.num_queries, row.num_committed = num_queries, num_committed
            error = None
            if impossible != NO_SLOT:
                error, num_final = no_token_error(model, row.prompt_length + impossible), row.num_new
            new = tokens[: num_final - row.num_new]
            row.tokens += new
            progress.append(Progress(row.name, new, error is not None or not is_alive, error))
        return progress


def merged(lanes: list[Lane]) -> list[Lane]:
    """The lanes with those of equal keys joined."""
    of_key: dict[Hashable, list[Lane]] = {}
    for lane in lanes:
        of_key.setdefault(id(lane) if lane.key is None else lane.key, []).append(lane)
    return [Lane.joined(each) if len(each) > 1 else each[0] for each in of_key.values()]


def no_token_error(model: PreTrainedModel, position: int) -> Exception:
    """The error of a row in which no token can be chosen."""
    try:
        with named_weights(model):
            refuse_impossible(0, position)
    except (NoTokenError, ValueError) as error:
        return error
