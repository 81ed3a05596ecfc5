"""What the queries of a step cost and bring on a model, learned from the steps themselves."""

import time
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

NUM_TIMES = 2  # A time is known after so many steps; the first of them may have loaded or compiled something.
NEW_TIME = 0.2  # the weight of a new step in the running mean
MOST_TIMES = 2.0  # A step that took longer than so many times the mean was disturbed, and counts as that.
FADING = 0.998  # What further queries cost is believed less with every step that did not have them.
NEW_CALL = 0.3  # the weight of a call in what the next ones begin with
FORGOTTEN = 0.95  # the weight of earlier steps in the pace of a call
TOO_MUCH = 1e9  # tokens


@dataclass
class StepTime:
    """The running mean of the seconds of a kind of step.

    Args:
        width (`int`): The queries of a row in the last of these steps.
        num_timed (`int`): The number of these steps.
        seconds (`float`): The mean, of a step that took no longer than one with one query: what it took more.
        last (`int`): The number of the last of them among all steps.
    """

    width: int
    num_timed: int = 0
    seconds: float = 0.0
    last: int = 0

    @property
    def is_known(self) -> bool:
        return self.num_timed >= NUM_TIMES

    def note(self, seconds: float, longest: float) -> None:
        if not self.is_known:
            self.seconds = min(seconds, self.seconds) if self.num_timed else seconds
        else:
            self.seconds += NEW_TIME * (min(seconds, longest) - self.seconds)
        self.num_timed += 1


class StepCosts:
    """The seconds of steps by their width, which is the number of queries of each row.

    Widths between two powers of two count as one kind of step. A width between two known ones costs what the line
    between them says. One beyond the widest known one is taken to cost no more than that, so that a plan which can use
    it tries it.
    """

    def __init__(self):
        self.single = StepTime(width=1)
        self.wider: dict[int, StepTime] = {}  # the power of two, and what such steps took more than a single query
        self.num_steps = 0

    def note(self, width: int, seconds: float) -> None:
        """Notes a step of so many queries a row."""
        self.num_steps += 1
        if width == 1:
            self.single.note(seconds, MOST_TIMES * self.single.seconds)
        elif self.single.is_known:
            kind = self.wider.setdefault((width - 1).bit_length(), StepTime(width))
            more, longest = seconds - self.single.seconds, MOST_TIMES * (self.single.seconds + kind.seconds)
            kind.note(max(0.0, more), longest)
            kind.width, kind.last = width, self.num_steps

    def further_seconds(self, most: int) -> list[float]:
        """What a step of 1, 2, ... `most` queries a row takes longer than one of a single query."""
        known = sorted((each for each in self.wider.values() if each.is_known), key=lambda each: each.width)
        widths = [1, *(each.width for each in known)]
        seconds = [0.0, *(each.seconds * FADING ** (self.num_steps - each.last) for each in known)]
        for i in reversed(range(len(seconds) - 1)):  # A narrower step takes no longer.
            seconds[i] = min(seconds[i], seconds[i + 1])
        return [interpolated(width, widths, seconds) for width in range(1, most + 1)]


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
        costs (`dict[int, StepCosts]`): The costs by the number of rows, rounded up to a power of two.
        drafts (`dict[str, torch.Tensor]`): The mean of the rows' records at the end of the last calls, by the name of
            the field of the window.
    """

    costs: dict[int, StepCosts] = field(default_factory=dict)
    drafts: dict[str, torch.Tensor] = field(default_factory=dict)

    def costs_of(self, num_rows: int) -> StepCosts:
        return self.costs.setdefault((num_rows - 1).bit_length(), StepCosts())

    def note_drafts(self, records: dict[str, torch.Tensor]) -> None:
        """Notes the records of the rows of a call that has ended, `[batch, n]` each."""
        for name, record in records.items():
            mean = record.mean(0)
            known = self.drafts.get(name, mean)
            num = min(len(known), len(mean))  # a call of few tokens has shorter records
            self.drafts[name] = torch.cat([known[:num].lerp(mean[:num], NEW_CALL), known[num:], mean[num:]])


EXPERIENCE: WeakKeyDictionary[PreTrainedModel, dict[tuple, Experience]] = WeakKeyDictionary()


def experience_with(model: PreTrainedModel) -> Experience:
    """The experience with this model on its device, and in its dtype."""
    return EXPERIENCE.setdefault(model, {}).setdefault((model.device, model.dtype), Experience())


class StepPrices:
    """The prices of one call: what further queries of a step cost, in the tokens that the call writes in that time.

    Args:
        experience (`Experience`): What is known of the model.
        num_rows (`int`): The rows of the batch.
        most (`int`): The most queries of a row.
        device (`torch.device`): The device of the prices.

    Attributes:
        tensor (`torch.FloatTensor` of shape `(most,)`): As `plan_step` takes them.
    """

    def __init__(self, experience: Experience, num_rows: int, most: int, device: torch.device):
        self.experience, self.most = experience, most
        self.tensor = torch.zeros(most, dtype=torch.float32, device=device)
        self.num_tokens, self.seconds = 0.0, 0.0  # of late
        self.last: tuple[float, int, int] | None = None  # the end of the last step, its rows and their tokens
        self.update(num_rows)

    def note(self, width: int, num_rows: int, num_tokens: int) -> None:
        """Notes a step that has just ended: its queries a row, its rows, and the tokens that these have by now."""
        now = time.perf_counter()
        if self.last is not None:
            then, rows_then, tokens_then = self.last
            self.experience.costs_of(num_rows).note(width, now - then)
            if num_rows == rows_then:
                self.num_tokens = FORGOTTEN * self.num_tokens + num_tokens - tokens_then
                self.seconds = FORGOTTEN * self.seconds + now - then
        self.last = now, num_rows, num_tokens

    def update(self, num_rows: int) -> None:
        """Writes the prices of the step after the next forward."""
        costs = self.experience.costs_of(num_rows)
        if costs.single.is_known:
            # One query a row writes a token a row: no call need be slower than that.
            rate = max(num_rows / costs.single.seconds, self.num_tokens / self.seconds if self.seconds else 0.0)
            prices = [rate * each for each in costs.further_seconds(self.most)]
        else:
            prices = [TOO_MUCH * (width > 1) for width in range(1, self.most + 1)]
        self.tensor.copy_(torch.tensor(prices))
