"""Times calls interleaved, so that what slows the machine for a while slows all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from wedlm.generation.model_kind import kind_of
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sequences import Queries, Text

Result = TypeVar("Result")
NUM_QUERIES = (1, 8, 32)  # of the forwards that show what one more query costs
NUM_CACHED = 64  # tokens before them
NUM_ROUNDS = 15


class Timed(NamedTuple):
    name: Hashable  # of the call
    result: Any
    seconds: float


def now(device: torch.device | str) -> float:
    """The clock in seconds, read once the device has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(call: Callable[[], Result], device: torch.device | str) -> tuple[Result, float]:
    """The result of the call, and the seconds until the device has finished it."""
    start = now(device)
    result = call()
    return result, now(device) - start


def interleaved(
    calls: Mapping[Hashable, Callable[[], Any]],
    device: torch.device | str,
    num_rounds: int,
    num_warm_up: int = 1,
    first: int = 0,
) -> Iterator[Timed]:
    """Makes every call once per round and yields each with its result and seconds, one at a time to spare memory.

    The rounds of the warm-up come before and are not yielded. A timed round begins with the call of index `first`.
    """
    names = list(calls)
    for name in num_warm_up * names:
        calls[name]()
    for name in num_rounds * [*names[first:], *names[:first]]:
        yield Timed(name, *timed(calls[name], device))


def interleaved_seconds(
    calls: Mapping[Hashable, Callable[[], Any]], device: torch.device | str, num_rounds: int, num_warm_up: int = 1
) -> dict[Hashable, list[float]]:
    """The seconds of every timed round by name."""
    seconds = {name: [] for name in calls}
    for each in interleaved(calls, device, num_rounds, num_warm_up):
        seconds[each.name].append(each.seconds)
    return seconds


# --- The cost of a query ---


def query_cost_of(seconds: dict[int, float]) -> float:
    """The slope of the line through the seconds by the number of queries, divided by the seconds of one query.

    query_cost_of({1: 2.0, 8: 2.7, 16: 3.5}) == 0.05
    """
    slope = statistics.linear_regression(list(seconds), list(seconds.values())).slope
    return round(max(0.0, slope / seconds[1]), 3)


@torch.inference_mode()
def measured_query_cost(model: PreTrainedModel) -> float:
    """The `query_cost` of verified decoding with this model, and its draft adapter, on this machine."""
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    cache, kind = RowCache(1, NUM_CACHED + max(NUM_QUERIES), device), kind_of(model)
    mask = kind.mask_token_id

    def queries_at(begin: int, number: int) -> Queries:
        """Text, and as many MASKs behind it, if the model has one; the logits of all are read."""
        tokens = torch.arange(number, device=device) % (mask or kind.config.vocab_size)
        if mask is not None:
            tokens[(number + 1) // 2 :] = mask
        text = Text(tokens[None], tokens.new_tensor([number]), tokens.new_tensor([begin]))
        return Queries.of_text(text)._replace(logits_indices=torch.arange(number, device=device)[None])

    def forward(number: int) -> None:
        seen = torch.arange(1, number + 1, device=device)[None]  # so that a mask is made, as in decoding
        queries = queries_at(NUM_CACHED, number)._replace(visible_prefix=seen)
        kind.forward(queries, cache, NUM_CACHED + number)

    kind.forward(queries_at(0, NUM_CACHED), cache, NUM_CACHED)
    cache.commit(torch.tensor([NUM_CACHED], device=device))
    calls = {number: lambda number=number: forward(number) for number in NUM_QUERIES}
    seconds = interleaved_seconds(calls, device, NUM_ROUNDS, num_warm_up=3)
    return query_cost_of({number: statistics.median(values) for number, values in seconds.items()})
