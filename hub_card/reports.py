"""The reports of `wedlm eval`, `wedlm train` and `wedlm adapt`, as sections of a card and as entries of the Hub."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from wedlm.checkpoints.errors import CheckpointError
from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import EvaluationSection, Section, TrainingSection
from wedlm.hub_card.leaks import without_leaks
from wedlm.hub_card.markdown import escaped, number, on_one_line, shown_command, shown_versions, table
from wedlm.hub_card.metadata import TASK


def read_report(path: Path, parse: Callable[[Any], Any], command: str) -> Any:
    """Reads a file that `command` writes, and returns what `parse` makes of its content."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a file of `{command}` ({type(error).__name__}: {error}); pass one that is."
        ) from error


# --- wedlm eval ---

DIGESTS = ("weights_sha256", "adapter_sha256")
SETUP = ("task", "title", "dataset", "dataset_config", "split", "num_fewshot", "num_examples")  # alike in a table


def read_evaluation(path: Path, digests: dict[str, str], model: str | os.PathLike) -> EvaluationSection:
    """Reads a file of `wedlm eval`, and refuses one about weights of other `digests` than the model has."""

    def parse(report: dict[str, Any]) -> tuple[list, EvaluationSection]:
        if not report["results"]:
            raise ValueError("it has no results")
        return [report.get(name) for name in DIGESTS], section_of(report)

    measured, evaluation = read_report(path, parse, "wedlm eval")
    if measured != [digests.get(name) for name in DIGESTS]:
        raise CheckpointError(f"{path} measured other weights than those of {model}; run `wedlm eval {model}` again.")
    return evaluation


def section_of(report: dict[str, Any]) -> EvaluationSection:
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
        hub_results=hub_results_of(report),
    )


def task_section(results: list[dict]) -> Section:
    """Returns the table of one task, with a line for each decoding."""
    first = results[0]
    titles = list(dict.fromkeys(heading(metric) for result in results for metric in result["metrics"]))
    lines = [["decoding", *map(escaped, titles), "tokens per pass", "cacheable", "tokens/s"]]
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


# --- wedlm train ---

LOSSES = {"loss": "", "mlm_loss": "of masked tokens ", "ar_loss": "of next tokens "}


def read_training(path: Path) -> TrainingSection:
    """Reads a training_report.json of `wedlm train`, or a training.json of the demo checkpoint's recipe."""
    return read_report(path, parse_training, "wedlm train")


def parse_training(report: dict[str, Any]) -> TrainingSection:
    log = report["log"] if "log" in report else report["results"]
    steps = [entry for entry in log if "loss" in entry]
    last = (steps or log)[-1]  # a run shorter than logging_steps has only the summary
    evaluations = [entry for entry in log if "eval_loss" in entry]
    seconds = report.get("seconds", next((entry["train_runtime"] for entry in log if "train_runtime" in entry), None))
    facts = {"optimizer steps": f"{last['step']:,}"}
    if "epoch" in last:
        facts["epochs"] = f"{last['epoch']:.2f}"
    for name, data in report.get("data", {}).items():
        facts[f"data ({name})"] = (
            f"{data['num_samples']:,} samples from {data['num_read']:,} records: {data['num_tokens']:,} tokens, "
            f"{data['num_loss_tokens']:,} of them with loss"
        )
    losses = [f"{title}{float(last[name]):.3f}" for name, title in LOSSES.items() if name in last]
    if losses:
        facts["loss, nats per token"] = ", ".join(losses)
    if evaluations:
        facts["loss on held-out data"] = f"{evaluations[-1]['eval_loss']:.3f}"
    if seconds is not None:
        facts["time"] = duration(seconds)
    if "device" in report:
        facts["device"] = place(report)
    for stage in report.get("stages", []):
        facts[f"stage: {stage['stage']}"] = (
            f"{duration(stage['seconds'])}, {place(stage)}, {commit_text(stage['commit'])}"
        )
    facts["versions"] = shown_versions(report["versions"])
    if report.get("commit") is not None:
        facts["source"] = commit_text(report["commit"])
    return TrainingSection(
        shown_command(report["command"]), {escaped(name): escaped(fact) for name, fact in facts.items()}
    )


def duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def place(report: dict[str, Any]) -> str:
    return f"{report['device']}, {report['threads']} thread{'' if report['threads'] == 1 else 's'}"


# --- wedlm adapt ---

REPORT_FILE, PLOT_FILE = "report.json", "drafts.png"


def read_draft_report(path: Path, digests: dict[str, str], adapter: Path) -> Section:
    """Reads a report.json of `wedlm adapt`, and refuses one about weights of other `digests` than the adapter has."""

    def parse(report: dict[str, Any]) -> tuple[dict[str, str], Section]:
        return {name: report["results"][name] for name in digests}, draft_section(report)

    measured, section = read_report(path, parse, "wedlm adapt")
    if measured != digests:
        raise CheckpointError(
            f"{path} measured other weights than those of {adapter} and its base; remove it, and export again."
        )
    return section


def draft_section(report: dict[str, Any]) -> Section:
    """Returns what the adapter brings, with the command and the conditions of the measurement."""
    results = report["results"]
    fused = f", fused ({results['product']})" if results.get("product") else ""
    given = {name: results["arguments"].get(name) for name in ("window_size", "query_cost")}  # the cost since 0.4.0
    shown = ", ".join(f"`{name}={value}`" for name, value in given.items() if value is not None)
    verified = f"verified ({shown})" if shown else "verified"
    earlier = report["settings"]["start_from"]  # the SHA-256 of its weights
    if earlier is None:
        origin = "This command trained the adapter from scratch, and on none of the prompts in the table:"
    else:  # an earlier run may have been trained on them
        origin = f"This command trained an earlier adapter further, whose weights have the SHA-256 `{earlier}`:"
    return Section(
        "Speed",
        f"The model answered the prompts greedily, one at a time, with at most "
        f"{report['settings']['max_new_tokens']} new tokens: token by token and {verified}, in turns, "
        f"in {results['dtype']}{fused}, on {escaped(report['device'])}, with {shown_versions(report['versions'])}, "
        f"{commit_text(report['commit'])}.\n\n"
        f"{origin}\n\n"
        f"```bash\n{shown_command(report['command'])}\n```\n\n"
        f"{table_of(results)}\n\n"
        f"The baseline is the same model token by token; verified decoding takes drafts from the adapter and from "
        f"prompt lookup. *Same output* counts the prompts with the same output as the baseline. *Tokens per pass* are "
        f"new tokens per forward pass. By default WeDLM leaves out MASKs that cost more time than they save; *full "
        f"windows* are the tokens per pass with all MASKs (`query_cost=0`). *Tokens/s* and *times as fast* are "
        f"medians over the prompts, the latter with the interquartile range.\n\n"
        f"![Tokens per forward pass in training, and measured]({PLOT_FILE})",
    )


def labelled(results: dict[str, Any]) -> dict[str, dict]:
    """The measured numbers by their names in the table: those of the held-out prompts, then those of the others."""
    other = {f"other prompts: {name}": one for name, one in results["also"].items()}
    return {name.replace("_", " "): one for name, one in (results["held_out"] | other).items()}


def table_of(results: dict[str, Any]) -> str:
    """Returns a table of the measured numbers, a line for each kind of prompts."""
    head = ["prompts", "number", "same output", "tokens per pass", "full windows", "tokens/s, token by token"]
    lines = [[*head, "tokens/s, verified", "times as fast"]]
    for name, one in labelled(results).items():
        times, (low, high) = one["times_autoregressive"]["median"], one["times_autoregressive"]["quartiles"]
        full = one.get("tokens_per_forward_of_full_windows")  # since 0.4.0
        lines.append(
            [
                escaped(name),
                str(one["num_questions"]),
                str(round(one["same_text_as_autoregressive"] * one["num_questions"])),
                number(one["tokens_per_forward"], 2),
                "" if full is None else number(full, 2),
                number(one["autoregressive_tokens_per_second"]["median"], 1),
                number(one["tokens_per_second"]["median"], 1),
                f"{times:.2f} ({low:.2f} to {high:.2f})",
            ]
        )
    return table(lines)
