"""The metrics of each objective of WeDLMTrainer."""

from collections.abc import Callable
from typing import NamedTuple

from wedlm.training import draft_metrics, metrics


class Objective(NamedTuple):
    row_sums: Callable
    combined_loss: Callable
    logged_metrics: Callable


OBJECTIVES = {
    name: Objective(module.row_sums, module.combined_loss, module.logged_metrics)
    for name, module in {"dual_stream": metrics, "draft": draft_metrics}.items()
}
