"""Plots of the ablations of decoding, drawn from their numbers alone and readable in grey."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wedlm.evaluation.decodings import BASELINE

SPEED, KIND = "times_autoregressive", "kind"  # what may stand on the x-axis besides an argument of generate()
SHADES = ("0.0", "0.45", "0.25", "0.6")
DOTTED = {"linewidth": 1, "linestyle": (0, (1, 3)), "label": "autoregressive"}


class Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float


class Panel(NamedTuple):
    y_label: str
    lines: dict[str, list[Point]]  # by label
    baseline: float  # drawn as a level


def quality_point(x: float, numbers: dict, base: float) -> Point:
    low, high = numbers["quality_over_autoregressive_interval"]
    return Point(x, 100 * numbers["quality"], 100 * max(base + low, 0), 100 * min(base + high, 1))


def speed_point(x: float, numbers: dict) -> Point:
    return Point(x, numbers[SPEED]["median"], *numbers[SPEED]["quartiles"])


def panels(x: str, summaries: dict[str, dict]) -> list[Panel]:
    """Quality and speed against the argument `x`, or quality against the speed."""
    base = summaries[BASELINE]["quality"]
    quality_lines, speed_lines = {}, {}
    for label, numbers in summaries.items():
        if label == BASELINE:
            continue
        arguments = numbers["arguments"]
        line = arguments["decoding"]
        if x == SPEED:
            place = numbers[SPEED]["median"]
            line += f", penalty {arguments['distance_penalty']}" if "distance_penalty" in arguments else ""
        else:
            place = arguments[x]
            speed_lines.setdefault(line, []).append(speed_point(place, numbers))
        quality_lines.setdefault(line, []).append(quality_point(place, numbers, base))
    shown = [Panel("right (% of the questions)", quality_lines, 100 * base)]
    return [*shown, Panel("times as fast as autoregressive", speed_lines, 1.0)] if speed_lines else shown


def draw(x: str, x_label: str, results: dict[str, dict[str, dict]], path: Path) -> None:
    """Writes the plot of a figure whose x-axis is `x`."""
    from matplotlib.figure import Figure

    shown = [] if x == KIND else panels(x, results["all"])
    figure = Figure(figsize=(5.2 * len(shown), 4) if shown else (9, 4), layout="constrained")
    if x == KIND:
        draw_kinds(results, figure.subplots())
    else:
        for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            draw_panel(panel, axes, has_settings=x != SPEED)
            axes.set(xlabel=x_label, ylabel=panel.y_label)
            axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_panel(panel: Panel, axes, has_settings: bool) -> None:
    """Bars are 95 % intervals of the difference to autoregressive decoding, and quartiles of the speeds."""
    for (label, points), style, shade in zip(panel.lines.items(), ("o-", "s--", "^-.", "D:"), SHADES, strict=False):
        x, y, low, high = zip(*sorted(points), strict=True)
        bars = [[b - a for a, b in zip(low, y, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
        axes.errorbar(x, y, bars, fmt=style, color=shade, label=label, markersize=5, linewidth=1, capsize=2)
    axes.axhline(panel.baseline, color="0.7", **DOTTED)
    places = sorted({point.x for points in panel.lines.values() for point in points})
    if has_settings and places[0] > 0 and all(b / a > 1.1 for a, b in pairwise(places)):
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places], fontsize="small")
        axes.minorticks_off()


def draw_kinds(results: dict[str, dict[str, dict]], axes) -> None:
    """Tokens per forward of each decoding, by kind of text."""
    kinds = [kind for kind in results if kind != "all"]
    labels = [label for label in results["all"] if label != BASELINE]
    width = 0.8 / len(labels)
    for i, (label, hatch, shade) in enumerate(
        zip(labels, ("", "//", "xx", ".."), ("0.35", "0.85", "0.65", "1.0"), strict=False)
    ):
        places = [number + (i - (len(labels) - 1) / 2) * width for number in range(len(kinds))]
        heights = [results[kind][label]["tokens_per_forward"] for kind in kinds]
        axes.bar(places, heights, width, label=label, hatch=hatch, color=shade, edgecolor="black")
    axes.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.axhline(1.0, color="0.5", **DOTTED)
    axes.set(xlabel="kind of text", ylabel="tokens per forward")
    axes.legend(fontsize="small")
