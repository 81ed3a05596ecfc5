"""The measurements of `wedlm eval`, as a section of a card and as entries of the Hub's model-index."""

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult

from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import EvaluationSection, Section
from wedlm.hub_card.leaks import without_leaks
from wedlm.hub_card.markdown import escaped, number, on_one_line, shown_command, shown_versions, table
from wedlm.hub_card.metadata import TASK
from wedlm.hub_card.options import ExportError
from wedlm.hub_card.report_file import read_report

DIGESTS = ("weights_sha256", "adapter_sha256")
SETUP = ("task", "title", "dataset", "dataset_config", "split", "num_fewshot", "num_examples")  # alike in a table


class Evaluation(NamedTuple):
    """One run of `wedlm eval`."""

    section: EvaluationSection
    hub_results: list[EvalResult]


def read_evaluation(path: Path, digests: dict[str, str], model: str | os.PathLike) -> Evaluation:
    """Reads a file of `wedlm eval`, and refuses one about weights of other `digests` than the model has."""

    def parse(report: dict[str, Any]) -> tuple[list, Evaluation]:
        if not report["results"]:
            raise ValueError("it has no results")
        return [report.get(name) for name in DIGESTS], Evaluation(section_of(report), hub_results_of(report))

    measured, evaluation = read_report(path, parse, "wedlm eval")
    if measured != [digests.get(name) for name in DIGESTS]:
        raise ExportError(f"{path} is about other weights than those of {model}; run `wedlm eval {model}` again.")
    return evaluation


def section_of(report: dict[str, Any]) -> EvaluationSection:
    """Returns the section of the card, with a table for each task."""
    words = {"True": "yes", "False": "no"}
    settings = [
        f"{name.replace('_', ' ')} {words.get(str(value), value)}"
        for name, value in report["settings"].items()
        if value not in (None, {})
    ]
    conditions = [report["device"], f"{report['threads']} threads", shown_versions(report["versions"]), *settings]
    if report.get("commit") is not None:
        conditions.append(commit_text(report["commit"]))
    tasks: dict[tuple, list] = {}
    for result in report["results"]:
        tasks.setdefault(tuple(result.get(name) for name in SETUP), []).append(result)
    return EvaluationSection(
        conditions=f"On {escaped(without_leaks(', '.join(conditions)))}:",
        command=shown_command(report["command"]),
        tasks=list(map(task_section, tasks.values())),
        limit=report["settings"].get("limit"),
    )


def task_section(results: list[dict]) -> Section:
    """Returns the table of one task, with a line for each decoding."""
    first = results[0]
    titles = list(dict.fromkeys(heading(metric) for result in results for metric in result["metrics"]))
    lines = [["decoding", *map(escaped, titles), "tokens per forward", "cacheable", "tokens/s"]]
    for result in results:
        scores = {heading(metric): score(metric) for metric in result["metrics"]}
        speed = (("tokens_per_forward", 2), ("prefix_cacheability", 2), ("tokens_per_second", 0))
        numbers = [number(result.get(name), digits) for name, digits in speed]
        lines.append([escaped(result["decoding"]), *(scores.get(title, "") for title in titles), *numbers])
    dataset = ", ".join(filter(None, [first["dataset"], first.get("dataset_config")]))
    shots = "" if first.get("num_fewshot") is None else f", {first['num_fewshot']} shots"
    description = f"{dataset}, split {first['split']}: {first['num_examples']:,} examples{shots}."
    return Section(escaped(first["title"]), f"{escaped(description)}\n\n{table(lines)}")


def metric_title(metric: dict) -> str:
    return metric["name"] if metric["filter"] == "none" else f"{metric['name']}, {metric['filter']}"


def heading(metric: dict) -> str:
    return metric_title(metric) + {None: "", True: " ↑", False: " ↓"}[metric.get("higher_is_better")]


def score(metric: dict) -> str:
    error = metric.get("stderr")
    return number(metric["value"], 3) + ("" if error is None else f" ± {number(error, 3)}")


def hub_results_of(report: dict[str, Any]) -> list[EvalResult]:
    """Returns the entries of the Hub's model-index, one for each metric; a partial run has none.

    The Hub groups entries by dataset and keeps one name for each group, so the name of the metric says which task and
    decoding an entry belongs to.
    """
    for result in report["results"]:
        for metric in result["metrics"]:
            if not math.isfinite(metric["value"]):
                raise ValueError(f"{metric['name']} of {result['task']} is {metric['value']}")
    if report["settings"].get("limit") is not None:
        return []
    return [
        EvalResult(
            task_type=TASK,
            dataset_type=result["dataset"],
            dataset_name=result["dataset"],
            dataset_config=result.get("dataset_config"),
            dataset_split=result["split"],
            metric_type=metric["name"],
            metric_value=metric["value"],
            metric_name=on_one_line(f"{result['title']}: {metric_title(metric)} ({result['decoding']})"),
            metric_args=metric_arguments(result, metric),
        )
        for result in report["results"]
        for metric in result["metrics"]
    ]


def metric_arguments(result: dict, metric: dict) -> dict[str, Any]:
    counts = {name: result.get(name) for name in ("task", "num_examples", "num_fewshot")}
    counts["stderr"] = metric.get("stderr")
    # The Hub drops None, and entropy_threshold=None means something.
    arguments = {name: "none" if value is None else value for name, value in result["arguments"].items()}
    return {name: value for name, value in counts.items() if value is not None} | arguments
