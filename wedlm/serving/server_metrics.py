"""Metrics of the server in Prometheus' form, and its log of requests."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wedlm.batching.manager import BatchingManager

ROUTES = ("/v1/chat/completions", "/v1/completions")
OUTCOMES = OK, REFUSED, CANCELLED, FAILED = "ok", "refused", "cancelled", "failed"
FIRST_TOKEN_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 30, 60)
REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
UNLOGGED = ("/health", "/metrics")  # requested every few seconds
log = logging.getLogger("wedlm.requests")


class Metrics:
    """The counts and times of one server, in a registry of its own, and what its manager does when they are read."""

    def __init__(self, manager: BatchingManager):
        self.manager, self.registry = manager, CollectorRegistry()
        self.registry.register(self)
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

    def collect(self) -> Iterator[Metric]:
        """The metrics of the manager, for the registry."""
        counts, scheduler = self.manager.counts, self.manager.scheduler
        kept_tokens = 0 if scheduler is None else scheduler.prefix_cache.num_tokens  # None: the thread has ended
        for name, sentence, value in (
            ("prompt_tokens", "Tokens of the prompts that were read.", counts.prompt_tokens),
            ("found_prompt_tokens", "Of these, tokens whose keys and values were found.", counts.found_tokens),
            ("generated_tokens", "Tokens that were written.", counts.tokens),
            ("forwards", "Forwards over the running requests, for all of them together.", counts.steps),
            ("row_forwards", "Forwards of each request, added up.", counts.row_forwards),
        ):
            yield CounterMetricFamily(f"wedlm_{name}", sentence, value)
        for name, sentence, value in (
            ("requests_running", "Requests in the batch.", len(self.manager.running)),
            ("requests_waiting", "Requests that wait for a place in the batch.", len(self.manager.waiting)),
            ("kept_tokens", "Tokens of ended texts whose keys and values stay.", kept_tokens),
            ("cached_tokens_limit", "Tokens whose keys and values may be in memory.", self.manager.max_cached_tokens),
        ):
            yield GaugeMetricFamily(f"wedlm_{name}", sentence, value)


@dataclass
class RequestRecord:
    """A request between its arrival and the end of its answer."""

    method: str
    path: str
    status: int | None = None  # None before the answer has begun
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_seconds: float | None = None  # only in a stream
    error: str | None = None  # that has ended a stream
    has_left: bool = False
    is_whole: bool = False  # Many clients leave then.
    begin: float = field(default_factory=time.monotonic)

    @property
    def outcome(self) -> str:
        if self.has_left and not self.is_whole:
            return CANCELLED
        if self.error is not None or self.status is None or self.status >= 500:
            return FAILED
        return OK if self.status < 400 else REFUSED

    def add_tokens(self, number: int) -> None:
        if number and self.first_token_seconds is None:
            self.first_token_seconds = time.monotonic() - self.begin
        self.completion_tokens += number

    def close(self, metrics: Metrics) -> None:
        """Writes the line of the log, and counts the request; only whole answers count in the times."""
        seconds = time.monotonic() - self.begin
        if self.path in ROUTES:
            metrics.requests.labels(self.path, self.outcome).inc()
            if self.first_token_seconds is not None:
                metrics.first_token_seconds.observe(self.first_token_seconds)
            if self.outcome == OK:
                metrics.request_seconds.observe(seconds)
        if self.path not in UNLOGGED or self.outcome != OK:
            log.info(self.line(seconds))

    def line(self, seconds: float) -> str:
        """The line of the log; the path is escaped, since anybody can write into it."""
        parts = [f"{self.method} {ascii(self.path)[1:-1][:100]} {self.status or '-'} {self.outcome} {seconds:.3f} s"]
        if self.first_token_seconds is not None:
            parts.append(f"first token after {self.first_token_seconds:.3f} s")
        if self.prompt_tokens:
            parts.append(f"{self.prompt_tokens} prompt tokens, {self.completion_tokens} new tokens")
        if self.error:
            parts.append(self.error)
        return ", ".join(parts)
