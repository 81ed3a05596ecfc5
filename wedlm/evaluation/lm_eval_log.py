"""Silences lm-eval's log and progress bars, and collects its warnings."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


class WarningCollector(logging.Handler):
    """Keeps each warning once, in the order of their first appearance, as the keys of `warnings`."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.warnings: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.setdefault(" ".join(record.getMessage().split()))


@contextmanager
def quiet_lm_eval() -> Iterator[WarningCollector]:
    """Silences lm-eval within the block, since our table repeats its output; yields the collector of its warnings."""
    logger, collector = logging.getLogger("lm_eval"), WarningCollector()
    level, propagates, handlers = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.WARNING)
    logger.propagate, logger.handlers = False, [collector]
    had_bars = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield collector
    finally:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagates, handlers
        if had_bars:
            enable_progress_bar()
