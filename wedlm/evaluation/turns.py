"""Times several calls in turns, so that what slows the machine for a while slows all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from tqdm.auto import tqdm

Result = TypeVar("Result")


class Turn(NamedTuple):
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


def take_turns(
    calls: Mapping[Hashable, Callable[[], Any]],
    device: torch.device | str,
    num_rounds: int,
    num_warm_up: int = 1,
    first: int = 0,
    bar: tqdm | None = None,
) -> Iterator[Turn]:
    """
    Makes every call once per round, one after another, and yields each call with its result and its seconds. Results
    are yielded one at a time, so that no more than one of them need be in memory.

    Args:
        calls (`Mapping[Hashable, Callable]`):
            The calls by name; none of them takes an argument.
        device (`torch.device` or `str`):
            The device that does the work and is waited for.
        num_rounds (`int`):
            Number of rounds that are timed.
        num_warm_up (`int`, *optional*, defaults to 1):
            Number of rounds before them, whose turns are not yielded.
        first (`int`, *optional*, defaults to 0):
            Index of the call that begins a timed round.
        bar (`tqdm`, *optional*):
            A progress bar that advances by one with each call, those of the warm-up included.
    """
    names = list(calls)
    for name in num_warm_up * names:
        calls[name]()
        if bar is not None:
            bar.update()
    for name in num_rounds * [*names[first:], *names[:first]]:
        yield Turn(name, *timed(calls[name], device))
        if bar is not None:
            bar.update()


def seconds_in_turns(
    calls: Mapping[Hashable, Callable[[], Any]],
    device: torch.device | str,
    num_rounds: int,
    num_warm_up: int = 1,
    bar: tqdm | None = None,
) -> dict[Hashable, list[float]]:
    """The seconds of every timed round by name; the arguments are those of `take_turns`."""
    seconds = {name: [] for name in calls}
    for turn in take_turns(calls, device, num_rounds, num_warm_up, bar=bar):
        seconds[turn.name].append(turn.seconds)
    return seconds


def median_and_range(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
