"""The report that a run leaves beside its checkpoint: training_report.json and loss.png."""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure

from wedlm.checkpoints.whole_file import write_whole
from wedlm.training.data import DataSummary

REPORT_FILE = "training_report.json"  # the last file that a run writes


def write_report(
    folder: Path, arguments: list[str], log_history: list[dict], summaries: dict[str, DataSummary]
) -> None:
    """Writes the report of a run.

    Args:
        folder (`Path`): The folder of the checkpoint.
        arguments (`list[str]`): The words of the command line; tokens of the Hub in them are left out.
        log_history (`list[dict]`): The log of the Trainer.
        summaries (`dict[str, DataSummary]`): The summaries of the data, by `"train"` and `"eval"`.
    """
    steps = [entry for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    report = {
        "command": " ".join(["wedlm", "train", *without_secrets(arguments)]),
        "versions": {name: version(name) for name in ("wedlm", "torch", "transformers", "accelerate", "datasets")},
        "data": {name: asdict(summary) for name, summary in summaries.items() if summary.num_read},
        "train": steps[-1] if steps else None,
        "eval": evaluations[-1] if evaluations else None,
        "log": log_history,
    }
    plot_losses(steps, evaluations, folder / "loss.png")
    write_whole(folder / REPORT_FILE, json.dumps(report, indent=2) + "\n")


def without_secrets(arguments: list[str]) -> list[str]:
    """Replaces the values of arguments such as --hub_token by dots."""
    words = list(arguments)
    for i, word in enumerate(arguments):
        name, is_given, _ = word.partition("=")
        if name.replace("-", "_").endswith("_token"):
            words[i : i + 2 - len(is_given)] = [f"{name}=..."] + ["..."] * (1 - len(is_given))
    return words


def plot_losses(steps: list[dict], evaluations: list[dict], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for entries, names, style in ((steps, ("loss", "mlm_loss", "ar_loss"), "-"), (evaluations, ("eval_loss",), "o-")):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in entries if name in entry]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=name, linewidth=1)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss per token (nats)")
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=150)
