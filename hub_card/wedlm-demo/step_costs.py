"""The cost of a step by its queries, and how drafts fared, learned from the steps themselves."""

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

NUM_TIMES = 2  # A time is known after so many steps; the first of them may have loaded or compiled something.
NEW_TIME = 0.2  # the weight of a new step in the running mean
DISTURBED = 2.0  # A step that took longer than so many times the mean was disturbed, and counts as that.
FADING = 0.9995  # A time is believed less with every step that is of another kind, and taken to be shorter.
NEW_CALL = 0.3  # the weight of a call in what the next ones begin with
FORGOTTEN = 0.95  # the weight of earlier steps in the pace of a call
TOO_MUCH = 1e9  # tokens
# Estimates that are too high are taken more often than others, so prices are raised: at the beginning of a call by
# CAUTION, less with each token that further queries have gained in it, more with each that they have cost, and a bit
# less with every step, so that they are tried again.
CAUTION, MOST_CAUTION, NEW_GAIN, LESS_CAUTION = 2.0, 4.0, 0.5, 0.01
MOST_WIDER = 4  # A step has at most so many times the queries of the widest one whose time is known.


@dataclass
class StepTime:
    """The running mean of the seconds of one kind of step.

    Args:
        width (`int`): The queries of a row in the last of these steps.
        num_timed (`int`): The number of these steps.
        seconds (`float`): The mean.
        last (`int`): The number of the last of them among all steps.
    """

    width: int
    num_timed: int = 0
    seconds: float = 0.0
    last: int = 0

    @property
    def is_known(self) -> bool:
        return self.num_timed >= NUM_TIMES

    def note(self, width: int, seconds: float, step: int) -> None:
        if not self.is_known:
            self.seconds = min(seconds, self.seconds) if self.num_timed else seconds
        else:
            weight = max(NEW_TIME, 1 - FADING ** (step - self.last))
            self.seconds += weight * (min(seconds, DISTURBED * self.seconds) - self.seconds)
        self.width, self.num_timed, self.last = width, self.num_timed + 1, step

    def belief(self, step: int) -> float:
        return FADING ** (step - self.last)


class StepCosts:
    """The seconds of steps by their width, which is the number of queries of each row.

    Widths between two powers of two count as one kind of step. A width between two known ones costs what the line
    between them says. One beyond the widest known one is taken to cost no more than that, up to four times its width,
    so that a plan which can use it tries it. (Calls in other threads may add widths while this one reads.)
    """

    def __init__(self):
        self.times: dict[int, StepTime] = {}  # by the exponent of the power of two that the width is rounded up to
        self.num_steps = 0

    def note(self, width: int, seconds: float) -> None:
        """Notes a step of so many queries a row."""
        self.num_steps += 1
        self.times.setdefault((width - 1).bit_length(), StepTime(width)).note(width, seconds, self.num_steps)

    @property
    def single_seconds(self) -> float | None:
        """What a step of one query a row takes; None until it is known."""
        single = self.times.get(0)
        if single is None or not single.is_known:
            return None
        wider = [each.seconds for each in list(self.times.values()) if each.is_known]  # they take no less
        return min(single.seconds * single.belief(self.num_steps), *wider)

    def further_seconds(self, most: int, most_wider: float = MOST_WIDER) -> list[float]:
        """What a step of 1, 2, ... `most` queries a row takes longer than one of a single query, which is known."""
        single, widths, seconds = self.single_seconds, [1], [0.0]
        for exponent, each in sorted(self.times.items()):
            if exponent > 0 and each.is_known:
                widths.append(each.width)
                seconds.append((each.seconds - single) * each.belief(self.num_steps))
        for i in reversed(range(len(seconds) - 1)):  # A narrower step takes no longer.
            seconds[i] = min(seconds[i], seconds[i + 1])
        return [
            interpolated(width, widths, seconds) if width <= most_wider * widths[-1] else math.inf
            for width in range(1, most + 1)
        ]


def interpolated(at: float, places: list, values: list[float]) -> float:
    """The value at a place, on the lines between ascending places; behind them the last value.

    >>> interpolated(3, [1, 2, 4], [0.0, 1.0, 5.0]), interpolated(9, [1, 2, 4], [0.0, 1.0, 5.0])
    (3.0, 5.0)
    """
    for i in range(1, len(places)):
        if at <= places[i]:
            share = (at - places[i - 1]) / (places[i] - places[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]


@dataclass
class Experience:
    """What earlier calls have found out about a model: the costs of its steps, and how its drafts fared.

    Args:
        costs (`dict[tuple[int, int, bool], StepCosts]`): The costs by kinds of batches: the number of rows and the
            thousands of tokens of the longest row (both rounded to powers of two, of which the exponents are taken),
            and whether steps have fixed shapes.
        draft_records (`dict[str, torch.Tensor]`): The mean of the rows' records at the end of the last calls, by the
            name of the field of the window.
    """

    costs: dict[tuple[int, int, bool], StepCosts] = field(default_factory=dict)
    draft_records: dict[str, torch.Tensor] = field(default_factory=dict)

    def costs_of(self, num_rows: int, longest: int, is_static: bool = False) -> StepCosts:
        key = (num_rows - 1).bit_length(), (longest // 1024).bit_length(), is_static
        return self.costs.setdefault(key, StepCosts())

    def note_drafts(self, first: dict[str, torch.Tensor], last: dict[str, torch.Tensor]) -> None:
        """Notes the records of the rows of a call that has ended, `[batch, ...]` each.

        `first` are those with which the rows began. Where none of them has changed, the call says nothing.
        """
        for name, record in last.items():
            has_changed = (record != first[name]) & record.isfinite()
            mean = record.where(has_changed, 0).sum(0) / has_changed.sum(0).clamp(min=1)
            known = self.draft_records.get(name, first[name][0]).to(mean.device)
            self.draft_records[name] = known.lerp(mean, NEW_CALL).where(has_changed.any(0), known)


EXPERIENCE: WeakKeyDictionary[PreTrainedModel, dict[tuple, Experience]] = WeakKeyDictionary()


def experience_with(model: PreTrainedModel) -> Experience:
    """The experience with this model on its device, and in its dtype."""
    return EXPERIENCE.setdefault(model, {}).setdefault((model.device, model.dtype), Experience())


class StepPrices:
    """The prices of one call: what further queries of a step cost, in the tokens that a row writes in that time.

    Args:
        experience (`Experience`): What is known of the model.
        num_rows (`int`): The rows of the batch.
        longest (`int`): The tokens of the longest prompt.
        most (`int`): The most queries of a row.
        device (`torch.device`): The device of the prices.
        shapes (`tuple[int]`, *optional*): The queries that a row of a step may have, in ascending order, where steps
            have fixed shapes. A step then costs what the smallest shape does that holds its queries.

    Attributes:
        tensor (`torch.FloatTensor` of shape `(most,)`): As `plan_step` takes them.
    """

    def __init__(
        self,
        experience: Experience,
        num_rows: int,
        longest: int,
        most: int,
        device: torch.device,
        shapes: tuple[int, ...] | None = None,
    ):
        self.experience, self.most, self.shapes = experience, most, shapes
        self.tensor = torch.zeros(most, dtype=torch.float32, device=device)
        self.num_tokens, self.seconds = 0.0, 0.0  # of late; the tokens are those of a row that is alive
        self.caution = CAUTION
        self.last: tuple[float, int, int] | None = None  # the end of the last step, its rows and their tokens
        self.update(num_rows, longest)

    def costs_of(self, num_rows: int, longest: int) -> StepCosts:
        return self.experience.costs_of(num_rows, longest, self.shapes is not None)

    def further_seconds(self, costs: StepCosts) -> list[float]:
        """What steps of 1, 2, ... `most` queries take longer than one of a single query."""
        if self.shapes is None:
            return costs.further_seconds(self.most)
        next_shape = max(wider / narrower for narrower, wider in pairwise(self.shapes))  # may be tried
        seconds = costs.further_seconds(self.most, most_wider=next_shape)
        return [seconds[min(shape for shape in self.shapes if shape > i) - 1] for i in range(self.most)]

    def begin(self, num_rows: int, num_tokens: int) -> None:
        """Notes that a step begins now, over so many rows and tokens. Otherwise it begins where the last one ended."""
        self.last = time.perf_counter(), num_rows, num_tokens

    def note(
        self, width: int, num_rows: int, num_alive: int, longest: int, num_tokens: int, now: float | None = None
    ) -> None:
        """Notes a step that has just ended.

        Args:
            width (`int`): Its queries a row.
            num_rows (`int`): Its rows.
            num_alive (`int`): Those of them whose text was incomplete.
            longest (`int`): The tokens of the longest row.
            num_tokens (`int`): The tokens that the rows have by now.
            now (`float`, *optional*): When the step ended, by `time.perf_counter`; by default now.
        """
        now = time.perf_counter() if now is None else now
        if self.last is not None:
            then, rows_then, tokens_then = self.last
            costs = self.costs_of(num_rows, longest)
            costs.note(width, now - then)
            if num_rows == rows_then:
                num_new = (num_tokens - tokens_then) / num_alive
                self.num_tokens = FORGOTTEN * self.num_tokens + num_new
                self.seconds = FORGOTTEN * self.seconds + now - then
                price = math.inf if costs.single_seconds is None else costs.further_seconds(width)[-1]
                if price < math.inf:
                    gained = num_new - 1 - price / costs.single_seconds
                    caution = self.caution + LESS_CAUTION * (1 - self.caution) - NEW_GAIN * gained
                    self.caution = min(max(1.0, caution), MOST_CAUTION)
        self.last = now, num_rows, num_tokens

    def update(self, num_rows: int, longest: int) -> None:
        """Writes the prices of the step after the next forward; `num_rows` and `longest` are as in `note`."""
        costs = self.costs_of(num_rows, longest)
        if costs.single_seconds is None:
            prices = [TOO_MUCH * (width > 1) for width in range(1, self.most + 1)]
        else:
            # One query a row writes a token a row: no call need be slower than that.
            of_late = self.num_tokens / self.seconds if self.seconds else 0.0
            rate = max(1 / costs.single_seconds, of_late)
            further = self.further_seconds(costs)
            prices = [min(self.caution * rate * each, TOO_MUCH) for each in further]
        self.tensor.copy_(torch.tensor(prices, dtype=torch.float32), non_blocking=True)
