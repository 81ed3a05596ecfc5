"""What a model card says: metadata for the Hub, and tables of the files that training and evaluation left."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, metadata_load
from huggingface_hub.utils import validate_repo_id

from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.leaks import without_leaks

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z]+)*|code|multilingual")
README_FIELDS = ("license", "license_name", "license_link", "base_model", "datasets", "language", "tags")
TASK = "text-generation"


class ExportError(ValueError):
    """A checkpoint that cannot be published as it is, or a place for it: one sentence with the remedy."""


@dataclass(frozen=True)
class CardOptions:
    """What the command line says about the card; it wins over the metadata of the checkpoint's README.md."""

    license: str | None = None
    base_models: Sequence[str] = ()
    datasets: Sequence[str] = ()
    languages: Sequence[str] = ()
    title: str | None = None
    prompt: str | None = None
    evaluation_files: Sequence[Path] = ()
    training_file: Path | None = None


# --- Metadata ---


def read_metadata(folder: Path, options: CardOptions) -> dict[str, Any]:
    """The fields of the README.md in `folder` that a card keeps, below those of `options`, checked."""
    readme = folder / "README.md"
    try:
        written = (metadata_load(readme) or {}) if readme.exists() else {}
    except (ValueError, OSError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ExportError(f"The metadata of {readme} cannot be read ({said}); correct or remove it.") from error
    metadata = {name: written[name] for name in README_FIELDS if written.get(name) is not None}
    if options.license is not None:
        metadata = {name: value for name, value in metadata.items() if not name.startswith("license")}
        metadata["license"] = options.license
    given = {"base_model": options.base_models, "datasets": options.datasets, "language": options.languages}
    metadata |= {name: list(values) for name, values in given.items() if values}
    check_licence(metadata, readme)
    for name in (name for name in given if name in metadata):
        values = as_list(metadata[name])
        for value in values:
            (check_language if name == "language" else check_hub_name)(name, value)
        metadata[name] = values if name == "datasets" or len(values) > 1 else values[0]
    return metadata


def check_licence(metadata: dict[str, Any], readme: Path) -> None:
    value = metadata.get("license")
    if value is None:
        raise ExportError(f"No licence is given, neither in {readme} nor here; pass --license, such as apache-2.0.")
    if not isinstance(value, str) or not LICENCE.fullmatch(value):
        raise ExportError(
            f"license={value!r} is not written as on the Hub; give one identifier in small letters, such as "
            "apache-2.0, by --license."
        )
    if value == "other" and not {"license_name", "license_link"} <= metadata.keys():
        raise ExportError(
            f"The licence 'other' needs a license_name and a license_link; write the three into the metadata of "
            f"{readme}, and leave out --license."
        )


def check_language(name: str, value: object) -> None:
    if not isinstance(value, str) or not LANGUAGE.fullmatch(value):
        raise ExportError(f"{name}={value!r} is no code of a language; give one such as en or deu, by --language.")


def check_hub_name(name: str, value: object) -> None:
    option = {"base_model": "--base-model", "datasets": "--dataset"}[name]
    try:
        if not isinstance(value, str):
            raise ValueError("it is no text")
        validate_repo_id(value)
    except ValueError as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise ExportError(
            f"{name}={value!r} is no name on the Hub ({said}); give one such as Qwen/Qwen3-8B by {option}."
        ) from error


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def card_data(metadata: dict[str, Any], title: str, evaluations: list["Evaluation"]) -> ModelCardData:
    results = [result for evaluation in evaluations for result in evaluation.hub_results()]
    return ModelCardData(
        **{name: value for name, value in metadata.items() if name != "tags"},
        library_name="transformers",
        pipeline_tag=TASK,
        tags=["wedlm", *as_list(metadata.get("tags"))],  # ModelCardData drops what comes twice
        model_name=title if results else None,
        eval_results=results or None,
    )


# --- Text for Markdown ---


def escaped(text: object) -> str:
    """One line of plain text, also inside a table."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(str(text).split()))


def shown_command(command: str) -> str:
    return " ".join(without_leaks(command).replace("`", "'").split())


def table(rows: list[list[str]]) -> str:
    """Of Markdown; the first row is the head, and all columns but the first are numbers. Empty columns go."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    marks = ["---", *["---:"] * (len(columns) - 1)]
    head, *rest = zip(*columns, strict=True)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rest))


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def versions_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


# --- What was measured ---


@dataclass(frozen=True)
class Metric:
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
    """Of one task by one decoding."""

    task: str
    title: str
    dataset: str
    dataset_config: str | None
    split: str
    num_fewshot: int | None  # of a group whose tasks have different ones
    num_examples: int
    decoding: str
    arguments: dict
    metrics: list
    tokens_per_forward: int | float | None
    prefix_cacheability: int | float | None
    tokens_per_second: int | float | None

    def setup(self) -> tuple:
        """What rows of one table have in common."""
        return (
            self.task,
            self.title,
            self.dataset,
            self.dataset_config,
            self.split,
            self.num_fewshot,
            self.num_examples,
        )


@dataclass(frozen=True)
class Evaluation:
    """What one run of `wedlm eval` measured."""

    command: str
    commit: str | None
    versions: dict
    device: str
    threads: int
    weights_sha256: str
    settings: dict
    results: list

    def for_card(self) -> dict[str, Any]:
        words = {"True": "yes", "False": "no"}
        settings = [
            f"{name.replace('_', ' ')} {words.get(str(value), value)}"
            for name, value in self.settings.items()
            if value not in (None, {})
        ]
        conditions = [self.device, f"{self.threads} threads", versions_text(self.versions), *settings]
        if self.commit is not None:
            conditions.append(commit_text(self.commit))
        setups = dict.fromkeys(result.setup() for result in self.results)
        return {
            "conditions": f"On {escaped(without_leaks(', '.join(conditions)))}:",
            "command": shown_command(self.command),
            "tasks": [task_for_card([row for row in self.results if row.setup() == setup]) for setup in setups],
        }

    def hub_results(self) -> list[EvalResult]:
        # The Hub groups by dataset and keeps one name for each group, so that what tells results of one group apart
        # stands with the metric.
        return [
            EvalResult(
                task_type=TASK,
                dataset_type=result.dataset,
                dataset_name=result.dataset,
                dataset_config=result.dataset_config,
                dataset_split=result.split,
                metric_type=metric.name,
                metric_value=metric.value,
                metric_name=f"{result.title}: {metric.title()} ({result.decoding})",
                metric_args=arguments_of(result, metric),
            )
            for result in self.results
            for metric in result.metrics
        ]


def arguments_of(result: Result, metric: Metric) -> dict[str, Any]:
    counts = {"task": result.task, "num_examples": result.num_examples}
    if result.num_fewshot is not None:
        counts["num_fewshot"] = result.num_fewshot
    if metric.stderr is not None:
        counts["stderr"] = metric.stderr
    # The Hub leaves None out, and entropy_threshold=None says something.
    return counts | {name: "none" if value is None else value for name, value in result.arguments.items()}


def task_for_card(results: list[Result]) -> dict[str, str]:
    first = results[0]
    titles = list(dict.fromkeys(metric.title() + metric.arrow() for row in results for metric in row.metrics))
    rows = [["decoding", *map(escaped, titles), "tokens per forward", "cacheable", "tokens/s"]]
    for row in results:
        cells = {metric.title() + metric.arrow(): metric.cell() for metric in row.metrics}
        rows.append(
            [
                escaped(row.decoding),
                *(cells.get(title, "") for title in titles),
                number(row.tokens_per_forward, 2),
                number(row.prefix_cacheability, 2),
                number(row.tokens_per_second, 0),
            ]
        )
    dataset = first.dataset if first.dataset_config is None else f"{first.dataset}, {first.dataset_config}"
    shots = "" if first.num_fewshot is None else f", {first.num_fewshot} shots"
    what = f"{dataset}, split {first.split}: {first.num_examples:,} examples{shots}."
    return {"title": escaped(first.title), "what": escaped(what), "table": table(rows)}


def read_evaluation(path: Path, weights_sha256: str, model: str) -> Evaluation:
    def parse(content: object) -> Evaluation:
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

    evaluation = read_report(path, parse, "wedlm eval")
    if evaluation.weights_sha256 != weights_sha256:
        raise ExportError(f"{path} is about other weights than those of {model}; run `wedlm eval {model}` again.")
    return evaluation


def read_report(path: Path, parse: Callable[[object], Any], command: str) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read as JSON ({error}); pass a file that `{command}` wrote.") from error
    try:
        return parse(content)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(
            f"{path} is no file that `{command}` wrote ({type(error).__name__}: {error}); pass one that is."
        ) from error


def read_fields(kind: type, content: object) -> Any:
    """A `kind` of what a JSON object holds; a field that may be None may be missing."""
    if not isinstance(content, dict):
        raise TypeError(f"{kind.__name__} is {content!r}")
    for item in fields(kind):
        if not isinstance(content.get(item.name), item.type):
            raise TypeError(f"{item.name} is {content.get(item.name)!r}")
    return kind(**{item.name: content.get(item.name) for item in fields(kind)})


# --- How it was trained ---


@dataclass(frozen=True)
class Training:
    command: str
    rows: list[tuple[str, str]]


def read_training(path: Path) -> Training:
    """Of a training_report.json that `wedlm train` wrote, or a training.json of the demo checkpoint's recipe."""
    return read_report(path, training_of, "wedlm train")


def training_of(report: dict[str, Any]) -> Training:
    log = report["log"] if "log" in report else report["results"]
    steps = [entry for entry in log if "loss" in entry]
    last = (steps or log)[-1]  # of a run shorter than logging_steps it is the summary
    evaluations = [entry for entry in log if "eval_loss" in entry]
    seconds = report.get("seconds", next((entry["train_runtime"] for entry in log if "train_runtime" in entry), None))
    rows = {"optimizer steps": f"{last['step']:,}", "epochs": f"{last['epoch']:.2f}"}
    for name, data in report.get("data", {}).items():
        rows[f"data ({name})"] = (
            f"{data['num_samples']:,} samples of {data['num_read']:,} rows: {data['num_tokens']:,} tokens, "
            f"{data['num_loss_tokens']:,} of them with loss"
        )
    losses = {"loss": "", "mlm_loss": "of masked tokens ", "ar_loss": "of next tokens "}
    shown = [f"{title}{float(last[name]):.3f}" for name, title in losses.items() if name in last]
    if shown:
        rows["loss, nats per token"] = ", ".join(shown)
    if evaluations:
        rows["loss on held-out data"] = f"{evaluations[-1]['eval_loss']:.3f}"
    if seconds is not None:
        rows["time"] = f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
    if "device" in report:
        rows["device"] = f"{report['device']}, {report['threads']} threads"
    rows["versions"] = versions_text(report["versions"])
    if report.get("commit") is not None:
        rows["source"] = commit_text(report["commit"])
    return Training(shown_command(report["command"]), [(escaped(name), escaped(rows[name])) for name in rows])
