"""The measurements of `wedlm eval`, as a section of a card and as entries of the Hub's model-index."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import EvaluationSection, TaskTable
from wedlm.hub_card.leaks import without_leaks
from wedlm.hub_card.markdown import escaped, number, on_one_line, shown_command, shown_versions, table
from wedlm.hub_card.metadata import TASK
from wedlm.hub_card.options import ExportError
from wedlm.hub_card.report_file import read_fields, read_report


@dataclass(frozen=True)
class Metric:
    """A score of one task by one decoding."""

    name: str
    filter: str
    value: int | float
    stderr: int | float | None
    higher_is_better: bool | None

    def title(self) -> str:
        return self.name if self.filter == "none" else f"{self.name}, {self.filter}"

    def arrow(self) -> str:
        return {None: "", True: " ↑", False: " ↓"}[self.higher_is_better]

    def cell(self) -> str:
        return number(self.value, 3) + ("" if self.stderr is None else f" ± {number(self.stderr, 3)}")


@dataclass(frozen=True)
class Result:
    """The scores of one task by one decoding, with the speed they were reached at."""

    task: str
    title: str
    dataset: str
    dataset_config: str | None
    split: str
    num_fewshot: int | None  # None for a group whose tasks differ in it
    num_examples: int
    decoding: str
    arguments: dict
    metrics: list
    tokens_per_forward: int | float | None
    prefix_cacheability: int | float | None
    tokens_per_second: int | float | None

    def setup(self) -> tuple:
        """Returns what the results in one table have in common."""
        dataset = (self.dataset, self.dataset_config, self.split)
        return self.task, self.title, *dataset, self.num_fewshot, self.num_examples


@dataclass(frozen=True)
class Evaluation:
    """One run of `wedlm eval`; the fields are those of its file."""

    command: str
    commit: str | None
    versions: dict
    device: str
    threads: int
    weights_sha256: str
    settings: dict
    results: list
    adapter_sha256: str | None = None  # of a draft adapter

    @property
    def limit(self) -> int | None:
        """The number of questions of each task that were asked; None if all were."""
        return self.settings.get("limit")

    def section(self) -> EvaluationSection:
        """Returns the section of the card, with a table for each task."""
        words = {"True": "yes", "False": "no"}
        settings = [
            f"{name.replace('_', ' ')} {words.get(str(value), value)}"
            for name, value in self.settings.items()
            if value not in (None, {})
        ]
        conditions = [self.device, f"{self.threads} threads", shown_versions(self.versions), *settings]
        if self.commit is not None:
            conditions.append(commit_text(self.commit))
        setups = dict.fromkeys(result.setup() for result in self.results)
        return EvaluationSection(
            conditions=f"On {escaped(without_leaks(', '.join(conditions)))}:",
            command=shown_command(self.command),
            tasks=[task_table([result for result in self.results if result.setup() == setup]) for setup in setups],
            limit=self.limit,
        )

    def hub_results(self) -> list[EvalResult]:
        """Returns the entries of the Hub's model-index, one for each metric; a partial run has none."""
        if self.limit is not None:
            return []
        # The Hub groups entries by dataset and keeps one name for each group, so the name of the metric says which
        # task and decoding an entry belongs to.
        return [
            EvalResult(
                task_type=TASK,
                dataset_type=result.dataset,
                dataset_name=result.dataset,
                dataset_config=result.dataset_config,
                dataset_split=result.split,
                metric_type=metric.name,
                metric_value=metric.value,
                metric_name=on_one_line(f"{result.title}: {metric.title()} ({result.decoding})"),
                metric_args=metric_arguments(result, metric),
            )
            for result in self.results
            for metric in result.metrics
        ]


def read_evaluation(path: Path, digests: dict[str, str], model: str | os.PathLike) -> Evaluation:
    """Reads a file of `wedlm eval`, and refuses one about weights of other `digests` than the model has."""
    evaluation = read_report(path, parse_evaluation, "wedlm eval")
    if any(getattr(evaluation, name) != digests.get(name) for name in ("weights_sha256", "adapter_sha256")):
        raise ExportError(f"{path} is about other weights than those of {model}; run `wedlm eval {model}` again.")
    return evaluation


def parse_evaluation(content: object) -> Evaluation:
    evaluation = read_fields(Evaluation, content)
    results = [read_fields(Result, result) for result in evaluation.results]
    if not results:
        raise ValueError("it has no results")
    for result in results:
        result.metrics[:] = [read_fields(Metric, metric) for metric in result.metrics]
        for metric in result.metrics:
            if not math.isfinite(metric.value):
                raise ValueError(f"{metric.name} of {result.task} is {metric.value}")
    evaluation.results[:] = results
    return evaluation


def metric_arguments(result: Result, metric: Metric) -> dict[str, Any]:
    counts = {"task": result.task, "num_examples": result.num_examples}
    if result.num_fewshot is not None:
        counts["num_fewshot"] = result.num_fewshot
    if metric.stderr is not None:
        counts["stderr"] = metric.stderr
    # The Hub drops None, and entropy_threshold=None means something.
    return counts | {name: "none" if value is None else value for name, value in result.arguments.items()}


def task_table(results: list[Result]) -> TaskTable:
    """Returns the table of one task, with a line for each decoding."""
    first = results[0]
    titles = list(dict.fromkeys(metric.title() + metric.arrow() for result in results for metric in result.metrics))
    lines = [["decoding", *map(escaped, titles), "tokens per forward", "cacheable", "tokens/s"]]
    for result in results:
        cells = {metric.title() + metric.arrow(): metric.cell() for metric in result.metrics}
        lines.append(
            [
                escaped(result.decoding),
                *(cells.get(title, "") for title in titles),
                number(result.tokens_per_forward, 2),
                number(result.prefix_cacheability, 2),
                number(result.tokens_per_second, 0),
            ]
        )
    dataset = first.dataset if first.dataset_config is None else f"{first.dataset}, {first.dataset_config}"
    shots = "" if first.num_fewshot is None else f", {first.num_fewshot} shots"
    description = f"{dataset}, split {first.split}: {first.num_examples:,} examples{shots}."
    return TaskTable(escaped(first.title), escaped(description), table(lines))
