"""Turns what lm-eval returns into one result per task and decoding: scores, with the speed they were reached at."""

from collections.abc import Iterable
from typing import Any

from wedlm.evaluation.tasks import GENERATES, Tasks

LIKELIHOOD = "likelihood"  # stands in place of a decoding for tasks that generate nothing


def results_of(
    measured: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict[str, dict[str, float]]
) -> list[dict]:
    """Returns a result for each task and group that lm-eval has measured.

    Args:
        measured (`dict`):
            The result of `lm_eval.evaluate`.
        tasks (`Tasks`):
            The tasks that were asked.
        label (`str`):
            Label of the decoding.
        arguments (`dict[str, Any]`):
            Arguments of `generate()` for this decoding.
        counts (`dict[str, dict[str, float]]`):
            Tokens, forwards, queries and seconds by task.
    """
    return [result_of(name, measured, tasks, label, arguments, counts) for name in measured["results"]]


def result_of(
    name: str, measured: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict[str, dict]
) -> dict:
    """Returns the result of one task or group."""
    members = leaves(name, measured["group_subtasks"])
    member_tasks = [tasks.all[member] for member in members]
    generates = any(task.get_config("output_type") == GENERATES for task in member_tasks)
    values = measured["results"][name]
    return {
        "task": name,
        "title": values.get("alias", name).strip(" -"),
        "dataset": shared(task.DATASET_PATH for task in member_tasks) or name,
        "dataset_config": shared(task.DATASET_NAME for task in member_tasks),
        "split": shared(task.get_config("test_split") or task.get_config("validation_split") for task in member_tasks)
        or "",
        "num_fewshot": shared(measured["n-shot"].get(member) for member in members),
        "num_examples": sum(measured["n-samples"][member]["effective"] for member in members),
        "version": measured["versions"].get(name),
        "is_group": name not in tasks.all,
        "decoding": label if generates else LIKELIHOOD,
        "arguments": arguments if generates else {},
        "metrics": metrics_of(values, measured["higher_is_better"].get(name, {})),
        **speeds([counts[member] for member in members if generates]),
    }


def shared(values: Iterable) -> Any:
    """Returns the value that all have in common, or None."""
    first, *others = dict.fromkeys(values)
    return None if others else first


def leaves(name: str, children: dict[str, list[str]]) -> list[str]:
    """Returns the tasks of a group and of the groups in it; a task is its own only leaf."""
    if name not in children:
        return [name]
    return [leaf for child in children[name] for leaf in leaves(child, children)]


def metrics_of(values: dict[str, Any], higher_is_better: dict[str, bool]) -> list[dict]:
    """Returns the metrics in `values`, which holds {"exact_match,none": 0.9, "exact_match_stderr,none": 0.01, ...}."""
    metrics = []
    for key, value in values.items():
        metric, is_metric, filter_name = key.partition(",")
        if is_metric and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{filter_name}")
            metrics.append(
                {
                    "name": metric,
                    "filter": filter_name,
                    "value": float(value),
                    "stderr": float(error) if isinstance(error, int | float) else None,  # lm-eval writes "N/A"
                    "higher_is_better": higher_is_better.get(metric, True),
                }
            )
    return metrics


def speeds(counts: list[dict[str, float]]) -> dict[str, float | None]:
    """Adds up the counts of several tasks; all speeds are None where nothing was generated."""
    tokens, forwards, queries, seconds = (
        sum(count[name] for count in counts) for name in ("tokens", "forwards", "window_queries", "seconds")
    )
    if not forwards:
        return dict.fromkeys(("tokens_per_forward", "prefix_cacheability", "tokens_per_second", "num_tokens"))
    return {
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / queries,
        "tokens_per_second": tokens / seconds,
        "num_tokens": tokens,
    }
