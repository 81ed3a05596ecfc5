"""What the server does, in Prometheus' form."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wedlm.batching.manager import BatchingManager
from wedlm.batching.scheduler import BatchCounts

CONTENT_TYPE = CONTENT_TYPE_LATEST
ROUTES = ("/v1/chat/completions", "/v1/completions")
OUTCOMES = OK, REFUSED, CANCELLED, FAILED = "ok", "refused", "cancelled", "failed"
FIRST_TOKEN_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 30, 60)
REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)


class Load(NamedTuple):
    """What a manager is doing.

    Args:
        counts (`BatchCounts`): What its batch has done.
        running (`int`): The requests in the batch.
        waiting (`int`): The requests that wait for a place.
        kept_tokens (`int`): The tokens of texts that have ended whose keys and values stay.
        max_cached_tokens (`int`): The most tokens whose keys and values may be in memory.
    """

    counts: BatchCounts
    running: int
    waiting: int
    kept_tokens: int
    max_cached_tokens: int

    @classmethod
    def of(cls, manager: BatchingManager) -> "Load":
        batch = manager.scheduler  # None where the thread has ended
        texts = [] if batch is None else list(batch.prefix_cache.texts.values())  # a copy: the thread changes it
        kept_tokens = sum(len(text.tokens) for text in texts)
        return cls(manager.counts, len(manager.running), len(manager.waiting), kept_tokens, manager.max_cached_tokens)


class Metrics:
    """The counts and times of one server, in a registry of its own.

    Args:
        load (`Callable[[], Load]`): Tells what the manager is doing; called whenever somebody reads the metrics.
    """

    def __init__(self, load: Callable[[], Load]):
        self.registry = CollectorRegistry()
        self.registry.register(LoadCollector(load))
        self.requests = Counter(
            "wedlm_requests", "Requests that have ended.", ["route", "outcome"], registry=self.registry
        )
        for route in ROUTES:
            for outcome in OUTCOMES:
                self.requests.labels(route, outcome)  # begins at 0, so that the first one shows as an increase
        self.first_token_seconds = Histogram(
            "wedlm_first_token_seconds",
            "Seconds from the arrival of a request to its first token.",
            buckets=FIRST_TOKEN_SECONDS,
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "wedlm_request_seconds",
            "Seconds from the arrival of a request to the end of its answer.",
            buckets=REQUEST_SECONDS,
            registry=self.registry,
        )

    def observe_first_token(self, seconds: float) -> None:
        """Notes how long after its arrival a request had its first token."""
        self.first_token_seconds.observe(seconds)

    def observe_end(self, route: str, outcome: str, seconds: float) -> None:
        """Notes how a request has ended, so many seconds after its arrival; only whole answers count in the times.

        Args:
            route (`str`): One of `ROUTES`.
            outcome (`str`): One of `OUTCOMES`.
            seconds (`float`): Counted from its arrival.
        """
        self.requests.labels(route, outcome).inc()
        if outcome == OK:
            self.request_seconds.observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' form, whose type is `CONTENT_TYPE`."""
        return generate_latest(self.registry)


class LoadCollector:
    """Reads the load whenever somebody asks, so that nobody counts twice."""

    def __init__(self, load: Callable[[], Load]):
        self.load = load

    def describe(self) -> list[Metric]:
        """Nothing, so that the registry does not read the load before anybody asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        load = self.load()
        for name, sentence, value in (
            ("prompt_tokens", "Tokens of the prompts that were read.", load.counts.prompt_tokens),
            ("found_prompt_tokens", "Of these, tokens whose keys and values were found.", load.counts.found_tokens),
            ("generated_tokens", "Tokens that were written.", load.counts.tokens),
            ("forwards", "Forwards over the running requests, for all of them together.", load.counts.steps),
            ("row_forwards", "Forwards of each request, added up.", load.counts.row_forwards),
        ):
            yield CounterMetricFamily(f"wedlm_{name}", sentence, value)
        for name, sentence, value in (
            ("requests_running", "Requests in the batch.", load.running),
            ("requests_waiting", "Requests that wait for a place in the batch.", load.waiting),
            ("kept_tokens", "Tokens of ended texts whose keys and values stay.", load.kept_tokens),
            ("cached_tokens_limit", "Tokens whose keys and values may be in memory.", load.max_cached_tokens),
        ):
            yield GaugeMetricFamily(f"wedlm_{name}", sentence, value)
