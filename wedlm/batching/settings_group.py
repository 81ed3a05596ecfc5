"""The requests of a running batch that share their settings, and what one forward does to them."""

from collections.abc import Container, Hashable
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from wedlm.batching.request import Request
from wedlm.batching.shared_cache import compacted
from wedlm.generation.callbacks import Callbacks
from wedlm.generation.decoding import after_forward
from wedlm.generation.sampling import SlotNoise, refuse_impossible
from wedlm.generation.sequences import NO_SLOT, Queries, Settings, State, joined
from wedlm.generation.validation import named_weights


class StepOutput(NamedTuple):
    """What a step has brought a request: new final tokens, whether it has ended, and the error that ended it."""

    request: Request
    tokens: list[int]
    has_ended: bool
    error: Exception | None = None


@dataclass
class SettingsGroup:
    """Requests with the same settings, in one state. A request with callbacks has a group of its own."""

    key: Hashable  # of the settings; groups of equal keys are joined. None: the group stays alone
    settings: Settings
    state: State
    requests: list[Request]  # of each row of the state
    callbacks: Callbacks | None

    @classmethod
    def from_request(cls, request: Request) -> "SettingsGroup":
        generator = torch.Generator(request.call.input_ids.device).manual_seed(request.seed)
        settings, state, callbacks = request.call.begin(generator)
        request.num_queries = int(state.sequences.num_queries)
        return cls(request.settings_key, settings, state, [request], callbacks)

    @classmethod
    def from_groups(cls, groups: list["SettingsGroup"]) -> "SettingsGroup":
        """Joins groups of equal keys."""
        first, requests = groups[0], [request for group in groups for request in group.requests]
        num_slots = max(request.max_new_tokens for request in requests)
        num_columns = max(request.prompt_length for request in requests)
        room, settings = (num_slots, num_columns, first.settings.blank), first.settings
        state = numbered(joined([group.state.with_room(*room) for group in groups]))
        if settings.noise is not None:
            settings = settings._replace(noise=joined_noise([group.settings.noise for group in groups]))
        return cls(first.key, settings, state, requests, None)

    def remove(self, requests: Container[Request]) -> None:
        """Goes on without some requests; the last rows fill the gaps."""
        removed = [row for row, request in enumerate(self.requests) if request in requests]
        if not removed:
            return
        kept = compacted(len(self.requests), removed)
        self.requests = [self.requests[row] for row in kept]
        if kept:
            rows = torch.tensor(kept, device=self.state.sequences.number.device)
            self.state = numbered(self.state.select(rows))
            if self.settings.noise is not None:
                self.settings = self.settings._replace(noise=selected_noise(self.settings.noise, kept))

    # --- A step ---

    def draw_noise(self) -> None:
        """Draws the noise of all slots that the next forward can look at."""
        if self.settings.noise is not None:
            columns = [(r.num_committed - r.prompt_length, r.num_queries, r.max_new_tokens) for r in self.requests]
            self.settings.noise.draw(list(range(len(columns))), *map(list, zip(*columns, strict=True)))

    def first_queries(self) -> Queries:
        """The queries behind the prompts, in the first step of all requests."""
        return self.settings.strategy.first_queries(self.state, self.settings)

    def queries(self) -> Queries:
        width = max(1, *(request.num_queries for request in self.requests))
        return self.settings.strategy.queries(self.state, width, self.settings)

    def move_on(self, queries: Queries, logits: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the state on by the logits of a forward pass, and plans the next one, which has `num_rows` rows.

        Returns how many of the queries stay in the cache, `[rows]`, and what `outputs_from` reads, `[rows, numbers]`.
        """
        self.state, num_kept, status = after_forward(
            self.settings, self.state, queries, logits, self.callbacks, num_rows
        )
        sequences = self.state.sequences
        num_final = sequences.num_tokens.where(~sequences.is_alive, sequences.num_final)
        begin = torch.tensor([request.num_new for request in self.requests], device=status.device)
        slots = begin[:, None] + torch.arange(self.settings.window_size + 1, device=status.device)
        tokens = sequences.tokens.gather(1, slots.clamp(max=sequences.scratch_slot))
        return num_kept, torch.cat([status.T, num_final[:, None], tokens], dim=-1)

    def outputs_from(self, values: list[list[int]], model: PreTrainedModel) -> list[StepOutput]:
        """Updates the requests by what `move_on` has returned; returns what the step has brought each of them."""
        outputs = []
        for request, (is_alive, num_queries, num_committed, impossible, num_final, *tokens) in zip(
            self.requests, values, strict=True
        ):
            request.num_queries, request.num_committed = num_queries, num_committed
            error = None
            if impossible != NO_SLOT:
                error, num_final = no_token_error(model, request.prompt_length + impossible), request.num_new
            new = tokens[: num_final - request.num_new]
            request.tokens += new
            outputs.append(StepOutput(request, new, error is not None or not is_alive, error))
        return outputs


def merged(groups: list[SettingsGroup]) -> list[SettingsGroup]:
    """The groups with those of equal keys joined."""
    of_key: dict[Hashable, list[SettingsGroup]] = {}
    for group in groups:
        of_key.setdefault(id(group) if group.key is None else group.key, []).append(group)
    return [SettingsGroup.from_groups(each) if len(each) > 1 else each[0] for each in of_key.values()]


def numbered(state: State) -> State:
    """The same, with the sequences numbered in their order."""
    number = torch.arange(len(state.sequences.number), device=state.sequences.number.device)
    return state._replace(sequences=state.sequences._replace(number=number))


def joined_noise(parts: list[SlotNoise]) -> SlotNoise:
    """The noise of rows with generators of their own, one behind the other."""
    noise = copy(parts[0])
    noise.values = torch.cat([part.values for part in parts])
    noise.num_drawn = [number for part in parts for number in part.num_drawn]
    noise.generators = [generator for part in parts for generator in part.generators]
    return noise


def selected_noise(noise: SlotNoise, rows: list[int]) -> SlotNoise:
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
    except ValueError as error:
        return error
