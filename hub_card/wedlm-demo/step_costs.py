"""What the queries of a step cost and bring on a model, learned from the steps themselves."""

import math
import time
from dataclasses import dataclass, field
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

    def further_seconds(self, most: int) -> list[float]:
        """What a step of 1, 2, ... `most` queries a row takes longer than one of a single query, which is known."""
        single, widths, seconds = self.single_seconds, [1], [0.0]
        for exponent, each in sorted(self.times.items()):
            if exponent > 0 and each.is_known:
                widths.append(each.width)
                seconds.append((each.seconds - single) * each.belief(self.num_steps))
        for i in reversed(range(len(seconds) - 1)):  # A narrower step takes no longer.
            seconds[i] = min(seconds[i], seconds[i + 1])
        return [
            interpolated(width, widths, seconds) if width <= MOST_WIDER * widths[-1] else math.inf
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
        costs (`dict[tuple[int, int], StepCosts]`): The costs by kinds of batches: the number of rows and the thousands
            of tokens of the longest row, both rounded to powers of two, of which the exponents are taken.
        drafts (`dict[str, torch.Tensor]`): The mean of the rows' records at the end of the last calls, by the name of
            the field of the window.
    """

    costs: dict[tuple[int, int], StepCosts] = field(default_factory=dict)
    drafts: dict[str, torch.Tensor] = field(default_factory=dict)

    def costs_of(self, num_rows: int, longest: int) -> StepCosts:
        return self.costs.setdefault(((num_rows - 1).bit_length(), (longest // 1024).bit_length()), StepCosts())

    def note_drafts(self, records: dict[str, torch.Tensor]) -> None:
        """Notes the records of the rows of a call that has ended, `[batch, ...]` each."""
        for name, record in records.items():
            mean = record.mean(0)
            if mean.isfinite().all():
                self.drafts[name] = self.drafts.get(name, mean).to(mean.device).lerp(mean, NEW_CALL)


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

    Attributes:
        tensor (`torch.FloatTensor` of shape `(most,)`): As `plan_step` takes them.
    """

    def __init__(self, experience: Experience, num_rows: int, longest: int, most: int, device: torch.device):
        self.experience, self.most = experience, most
        self.tensor = torch.zeros(most, dtype=torch.float32, device=device)
        self.num_tokens, self.seconds = 0.0, 0.0  # of late
        self.caution = CAUTION
        self.last: tuple[float, int, int] | None = None  # the end of the last step, its rows and their tokens
        self.update(num_rows, num_rows, longest)

    def note(self, width: int, num_rows: int, num_alive: int, longest: int, num_tokens: int) -> None:
        """Notes a step that has just ended.

        Args:
            width (`int`): Its queries a row.
            num_rows (`int`): Its rows.
            num_alive (`int`): Those of them whose text was incomplete.
            longest (`int`): The tokens of the longest row.
            num_tokens (`int`): The tokens that the rows have by now.
        """
        now = time.perf_counter()
        if self.last is not None:
            then, rows_then, tokens_then = self.last
            costs = self.experience.costs_of(num_rows, longest)
            costs.note(width, now - then)
            if num_rows == rows_then:
                num_new = num_tokens - tokens_then
                self.num_tokens = FORGOTTEN * self.num_tokens + num_new
                self.seconds = FORGOTTEN * self.seconds + now - then
                price = math.inf if costs.single_seconds is None else costs.further_seconds(width)[-1]
                if price < math.inf:
                    gained = num_new / num_alive - 1 - price / costs.single_seconds
                    caution = self.caution + LESS_CAUTION * (1 - self.caution) - NEW_GAIN * gained
                    self.caution = min(max(1.0, caution), MOST_CAUTION)
        self.last = now, num_rows, num_tokens

    def update(self, num_rows: int, num_alive: int, longest: int) -> None:
        """Writes the prices of the step after the next forward, over `num_rows` rows.

        `num_alive` and `longest` are as in `note`.
        """
        costs = self.experience.costs_of(num_rows, longest)
        if costs.single_seconds is None:
            prices = [TOO_MUCH * (width > 1) for width in range(1, self.most + 1)]
        else:
            # One query a row writes a token a row: no call need be slower than that.
            of_late = self.num_tokens / self.seconds / num_alive if self.seconds else 0.0
            rate = max(1 / costs.single_seconds, of_late)
            prices = [min(self.caution * rate * each, TOO_MUCH) for each in costs.further_seconds(self.most)]
        self.tensor.copy_(torch.tensor(prices), non_blocking=True)
