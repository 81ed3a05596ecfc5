"""The plot of an ablation of training, drawn from its report alone: a panel for each kind and one for the paper."""

from pathlib import Path

import numpy as np

LINE = {"markersize": 6, "linewidth": 1, "capsize": 3}
STYLES = [  # readable in grey
    {"marker": "o", "linestyle": "-", "color": "black"},
    {"marker": "s", "linestyle": "--", "color": "dimgrey", "markerfacecolor": "white"},
    {"marker": "^", "linestyle": ":", "color": "tab:blue"},
]


def draw(report: dict, variants: dict[str, str], x_label: str, path: Path) -> None:
    """Writes the plot; `variants` are the labels on the x-axis by the names of the models."""
    from matplotlib.figure import Figure

    results = report["results"]
    kinds = list(dict.fromkeys(numbers["kind"] for numbers in results["rows"]))
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    *panels, papers = figure.subplots(1, len(kinds) + 1)
    for axes, kind in zip(panels, kinds, strict=True):
        draw_kind([numbers for numbers in results["rows"] if numbers["kind"] == kind], list(variants), axes)
    draw_paper(results["paper"], papers)
    limits = [limit for axes in panels for limit in axes.get_ylim()]
    for axes in panels:
        axes.set_ylim(min(limits), max(limits))
    for axes in (*panels, papers):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(variants)), variants.values())
        axes.set(xlabel=x_label, xlim=(-0.4, len(variants) - 0.6))
    panels[0].set_ylabel("right answers, over the base (percentage points)")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), title="decoding (bars: 95 %)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_kind(measured: list[dict], models: list[str], axes) -> None:
    """The difference of each model and decoding to the base, on the questions of one kind."""
    of = {(numbers["model"], numbers["decoding"]): numbers for numbers in measured}
    base = of.pop(("base", "token by token"))
    for number, (decoding, style) in enumerate(zip(dict.fromkeys(key[1] for key in of), STYLES, strict=True)):
        of_models = [of[model, decoding] for model in models]
        values = np.array([numbers["over_base"] for numbers in of_models])
        bounds = np.array([numbers["over_base_interval"] for numbers in of_models]).T
        places = np.arange(len(models)) + 0.12 * (number - 1)
        axes.errorbar(places, 100 * values, 100 * np.abs(bounds - values), label=decoding, **style, **LINE)
    axes.set_title(f"{base['kind']} (base: {base['accuracy']:.1%})".replace("both", "both kinds"))


def draw_paper(paper: dict[str, list[float]], axes) -> None:
    for (model, values), style in zip(paper.items(), STYLES, strict=False):
        axes.errorbar(np.arange(len(values)), values, label=model, **style, **LINE)
    axes.set_title("the paper (averages of its tests)")
    axes.legend(title="base model")
