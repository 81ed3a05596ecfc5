"""The record of one request: its line in the log, and what the metrics count of it."""

import logging
import time
from dataclasses import dataclass, field

from wedlm.serving.metrics import CANCELLED, FAILED, OK, REFUSED, ROUTES, Metrics

UNLOGGED = ("/health", "/metrics")  # asked every few seconds
log = logging.getLogger("wedlm.requests")


@dataclass
class RequestRecord:
    """A request between its arrival and the end of its answer.

    Args:
        method (`str`): GET or POST.
        path (`str`): The path of its route.
        status (`int`, *optional*): The status of the answer, once that has begun.
        prompt_tokens (`int`): The tokens of its prompt.
        completion_tokens (`int`): The tokens of its answer.
        first_token_seconds (`float`, *optional*): When the first token came; only streams tell.
        error (`str`, *optional*): Why the answer was broken off.
        has_left (`bool`): Whether the client has left.
        is_whole (`bool`): Whether the answer was written to its end; many clients leave then.
    """

    method: str
    path: str
    status: int | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_seconds: float | None = None
    error: str | None = None
    has_left: bool = False
    is_whole: bool = False
    begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    @property
    def outcome(self) -> str:
        if self.has_left and not self.is_whole:
            return CANCELLED
        if self.error is not None or self.status is None or self.status >= 500:
            return FAILED
        return OK if self.status < 400 else REFUSED

    def note_tokens(self, number: int) -> None:
        """Notes further tokens of a stream."""
        if number and self.first_token_seconds is None:
            self.first_token_seconds = self.seconds
        self.completion_tokens += number

    def close(self, metrics: Metrics) -> None:
        """Writes the line of the log, and tells the metrics."""
        seconds = self.seconds
        if self.path in ROUTES:
            if self.first_token_seconds is not None:
                metrics.observe_first_token(self.first_token_seconds)
            metrics.observe_end(self.path, self.outcome, seconds)
        if self.path not in UNLOGGED or self.outcome != OK:
            log.info(self.line(seconds))

    def line(self, seconds: float) -> str:
        """The line of the log; a path is quoted, since anybody can write into it."""
        parts = [f"{self.method} {ascii(self.path)[1:-1][:100]} {self.status or '-'} {self.outcome} {seconds:.3f} s"]
        if self.first_token_seconds is not None:
            parts.append(f"first token after {self.first_token_seconds:.3f} s")
        if self.prompt_tokens:
            parts.append(f"{self.prompt_tokens} prompt tokens, {self.completion_tokens} new tokens")
        return ", ".join([*parts, *([self.error] if self.error else [])])
