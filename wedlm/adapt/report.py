"""The report of a run and its plot: how the drafts got better in training, and what they bring on held-out prompts."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from wedlm.adapt.settings import AdaptSettings
from wedlm.evaluation.provenance import write_report

REPORT_FILE, PLOT_FILE = "report.json", "drafts.png"


def write_adapter_report(settings: AdaptSettings, results: dict[str, Any], folder: Path) -> None:
    """Writes report.json and the plot, and prints the table.

    Args:
        settings (`AdaptSettings`): The settings of the run.
        results (`dict[str, Any]`): The numbers of `measure`, and the log of the training.
        folder (`Path`): The folder of the adapter.
    """
    write_report(folder / REPORT_FILE, results, results["device"], ("peft",), settings=settings.recorded())
    plot(results, folder / PLOT_FILE)
    print(table(results))


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the tokens per forward that training expects, step by step, and those measured, kind by kind."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    for name, style, title in (
        ("tokens_per_forward", "-", "training"),
        ("eval_tokens_per_forward", "o-", "held-out answers"),
    ):
        points = [(entry["step"], entry[name]) for entry in results["log"] if name in entry]
        if points:
            curve.plot(*zip(*points, strict=True), style, linewidth=1, label=title)
    curve.set_xlabel("optimizer step")
    curve.set_ylabel("tokens per forward, by the accepted drafts")
    curve.legend()
    rows = labelled(results)
    bars.barh(list(rows)[::-1], [one["tokens_per_forward"] for one in rows.values()][::-1])
    bars.axvline(1, color="black", linewidth=1)
    bars.set_xlabel("tokens per forward, measured")
    figure.savefig(path, dpi=120)


def labelled(results: dict[str, Any]) -> dict[str, dict]:
    """The measured numbers by their names in the table: those of the held-out prompts, then those of the others."""
    other = {f"other prompts: {name}": one for name, one in results["also"].items()}
    return {name.replace("_", " "): one for name, one in (results["held_out"] | other).items()}


def table(results: dict[str, Any]) -> str:
    """A Markdown table of the measured numbers, a line for each kind."""
    lines = [
        "| kind | prompts | same text | tokens per forward | tokens/s, token by token | verified | times as fast |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in labelled(results).items():
        same = round(one["same_text_as_autoregressive"] * one["num_questions"])
        times = one["times_autoregressive"]
        lines.append(
            f"| {name} | {one['num_questions']} | {same} | {one['tokens_per_forward']:.2f} "
            f"| {one['autoregressive_tokens_per_second']['median']:.1f} | {one['tokens_per_second']['median']:.1f} "
            f"| {times['median']:.2f} ({times['quartiles'][0]:.2f} to {times['quartiles'][1]:.2f}) |"
        )
    return "\n".join(lines) + "\n"
