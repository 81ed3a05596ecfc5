"""The metrics of each objective of WeDLMTrainer: modules with the same three functions."""

from wedlm.training import draft_metrics, metrics

OBJECTIVES = {"dual_stream": metrics, "draft": draft_metrics}
