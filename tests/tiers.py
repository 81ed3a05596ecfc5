"""The tiers of the suite: what `make test` runs, what only `make test-all` does, and what only `make test-slow` does.

A test belongs to `make test` unless it is marked:

- `@pytest.mark.full`: `make test-all` runs it;
- `@pytest.mark.few(3)`: `make test` runs three of its cases, `make test-all` all of them;
- `@pytest.mark.slow`, `browser`, `real`, `ecosystem` and `vllm`: `make test-slow`, `make test-browser`,
  `make test-real`, `make test-ecosystem` and `make test-vllm` run it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

import pytest
from hypothesis import settings

# Seconds after which a test fails; pyproject.toml has the limit of tests without one of these markers.
LIMITS = {"slow": 900, "real": 900, "ecosystem": 900, "vllm": 900, "browser": 300, "full": 300}


def property_settings(number: int, **options) -> settings:
    """Settings of a property with `number` examples, a third of which `make test` and `make test-all` draw."""
    in_this_run = number * settings().max_examples // 100  # of the profile, which has 100 by itself
    return settings(max_examples=max(1, in_this_run), **options)


def spread(length: int, number: int) -> set[int]:
    """`number` places in a list of `length`: the first, the last, and between them evenly."""
    if number == 1 or length <= number:
        return set(range(min(length, number)))
    return {round(place * (length - 1) / (number - 1)) for place in range(number)}


def slow_but(kept: Collection, cases: Iterable) -> list:
    """The cases of a parameter, of which those that are not kept are slow."""
    return [pytest.param(case, marks=() if case in kept else pytest.mark.slow) for case in cases]


def mark_all_but_few(items: list[pytest.Item]) -> None:
    """Marks as `full` the cases of a test with the marker `few` that `make test` leaves out."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases[item.parent, item.originalname].append(item)
    for of_one_test in cases.values():
        (number,) = of_one_test[0].get_closest_marker("few").args
        kept = spread(len(of_one_test), number)
        for place, item in enumerate(of_one_test):
            if place not in kept:
                item.add_marker(pytest.mark.full)
