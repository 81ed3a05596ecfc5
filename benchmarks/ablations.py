"""The paper's figures on the demo checkpoint: quality and speed of the same texts, every decoding in turns.

    python benchmarks/ablations.py threshold|penalty|streaming-blockwise|pareto|window|kinds [--num-questions 100]

Each writes benchmarks/results/ablation_FIGURE.json and docs/evidence/FIGURE.png, and goes on where it was stopped.
`make ablations` runs them all and then writes docs/EVIDENCE.md.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.checkers import check
from wedlm.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.provenance import REPOSITORY, conditions, weights_digest, write_report
from wedlm.evaluation.sweep import Answer, Question, summaries, sweep
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.modeling_wedlm.hub_code import flat_files

MAX_NEW_TOKENS = 160
MATHS = ("word_problems", "equations")  # what the paper's MATH and GSM8K are here
THRESHOLDS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5]


class Figure(NamedTuple):
    kinds: tuple[str, ...]
    decodings: dict[str, dict]  # besides the baseline
    x: str  # the argument that is varied
    x_label: str


FIGURES = {
    "threshold": Figure(
        MATHS,
        combinations(["streaming"], entropy_threshold=THRESHOLDS),
        "entropy_threshold",
        "entropy threshold (nats)",
    ),
    "penalty": Figure(
        MATHS,
        combinations(["streaming"], distance_penalty=[0.0, 0.01, 0.02, 0.05, 0.1, 0.2]),
        "distance_penalty",
        "distance penalty (nats per slot)",
    ),
    "streaming-blockwise": Figure(
        MATHS,
        combinations(["streaming", "blockwise"], entropy_threshold=[0.1, 0.2, 0.3, 0.5, 0.7, 0.9]),
        "entropy_threshold",
        "entropy threshold (nats)",
    ),
    "pareto": Figure(
        MATHS,
        combinations(["streaming"], entropy_threshold=[0.05, 0.1, 0.2, 0.4, 0.6, 0.9], distance_penalty=[0.01, 0.05])
        | combinations(["verified"], window_size=[8, 16]),
        "times_autoregressive",
        "times as fast as autoregressive",
    ),
    "window": Figure(
        MATHS,
        combinations(["streaming", "verified"], window_size=[2, 4, 8, 16, 32]),
        "window_size",
        "window (slots)",
    ),
    "kinds": Figure(KINDS, combinations(["streaming", "blockwise", "verified"]), "kind", "kind of text"),
}


def questions_of(kind: str, number: int, tokenizer: PreTrainedTokenizerBase) -> list[Question]:
    def question(example) -> Question:
        ids = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True, return_dict=True)
        return Question(ids["input_ids"], lambda text: float(check(kind, example.prompt, text)))

    return [question(example) for example in held_out_examples(kind, number)]


def measure(figure: Figure, model, tokenizer, num_questions: int, work: WorkFile) -> dict[str, dict[str, dict]]:
    """By kind and label, and under "all" for the questions of all kinds together."""
    decodings = {BASELINE: {"decoding": BASELINE}, **figure.decodings}
    by_kind = {
        kind: sweep(model, tokenizer, questions_of(kind, num_questions, tokenizer), decodings, MAX_NEW_TOKENS, work)
        for kind in figure.kinds
    }
    together: dict[str, list[Answer]] = {
        label: [answer for answers in by_kind.values() for answer in answers[label]] for label in decodings
    }
    return {kind: summaries(answers, decodings) for kind, answers in {**by_kind, "all": together}.items()}


# --- What is shown of it, made from the numbers alone ---


def table(results: dict[str, dict[str, dict]]) -> str:
    """The questions together; where there are many kinds, each of them."""
    kinds = ["all"] if len(results) < 6 else [kind for kind in results if kind != "all"]
    header = ["decoding", "right", "over autoregressive", "tokens per forward", "cacheable", "times autoregressive"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for kind in kinds:
        for label, row in results[kind].items():
            name = label if kind == "all" else f"{kind.replace('_', ' ')}: {label}"
            low, high = (100 * bound for bound in row["quality_over_autoregressive_interval"])
            slow, fast = row["times_autoregressive"]["quartiles"]
            cells = [
                name,
                f"{100 * row['quality']:.1f} %",
                "" if label == BASELINE else f"{low:+.1f} to {high:+.1f}",
                f"{row['tokens_per_forward']:.2f}",
                f"{row['prefix_cacheability']:.2f}",
                "" if label == BASELINE else f"{row['times_autoregressive']['median']:.2f} ({slow:.2f} to {fast:.2f})",
            ]
            lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


class Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float


class Panel(NamedTuple):
    y_label: str
    lines: dict[str, list[Point]]
    baseline: float | None  # a level to compare with


def quality_point(x: float, row: dict, base: float) -> Point:
    low, high = row["quality_over_autoregressive_interval"]
    return Point(x, 100 * row["quality"], 100 * max(base + low, 0), 100 * min(base + high, 1))


def speed_point(x: float, row: dict) -> Point:
    return Point(x, row["times_autoregressive"]["median"], *row["times_autoregressive"]["quartiles"])


def panels(name: str, results: dict[str, dict[str, dict]]) -> list[Panel]:
    figure, rows = FIGURES[name], results["all"]
    base = rows[BASELINE]["quality"]
    quality_lines, speed_lines = {}, {}
    for label, row in rows.items():
        if label == BASELINE:
            continue
        arguments = row["arguments"]
        line = arguments["decoding"]
        if name == "pareto":
            x = row["times_autoregressive"]["median"]
            line += f", penalty {arguments['distance_penalty']}" if "distance_penalty" in arguments else ""
        else:
            x = arguments[figure.x]
            speed_lines.setdefault(line, []).append(speed_point(x, row))
        quality_lines.setdefault(line, []).append(quality_point(x, row, base))
    shown = [Panel("right (% of the questions)", quality_lines, 100 * base)]
    return [*shown, Panel("times as fast as autoregressive", speed_lines, 1.0)] if speed_lines else shown


def draw(name: str, results: dict[str, dict[str, dict]], path: Path) -> None:
    """Readable in grey. Bars: 95 % of the resampled differences to autoregressive; quartiles of the speeds."""
    from matplotlib.figure import Figure as Canvas

    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "kinds":
        return draw_kinds(results, path)
    shown = panels(name, results)
    canvas = Canvas(figsize=(5.2 * len(shown), 4), layout="constrained")
    for axes, panel in zip(canvas.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for (label, points), style, shade in zip(
            panel.lines.items(), ("o-", "s--", "^-.", "D:"), ("0.0", "0.45", "0.25", "0.6"), strict=False
        ):
            points = sorted(points)
            x, y, low, high = zip(*points, strict=True)
            bars = [[b - a for a, b in zip(low, y, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
            axes.errorbar(x, y, bars, fmt=style, color=shade, label=label, markersize=5, linewidth=1, capsize=2)
        if panel.baseline is not None:
            axes.axhline(panel.baseline, color="0.7", linewidth=1, linestyle=(0, (1, 3)), label="autoregressive")
        axes.set(xlabel=FIGURES[name].x_label, ylabel=panel.y_label)
        places = sorted({point.x for points in panel.lines.values() for point in points})
        if name != "pareto" and places[0] > 0 and all(b / a > 1.1 for a, b in pairwise(places)):
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:g}" for place in places], fontsize="small")
            axes.minorticks_off()
        axes.legend(fontsize="small")
    canvas.savefig(path, dpi=110, metadata={"Software": None})


def draw_kinds(results: dict[str, dict[str, dict]], path: Path) -> None:
    from matplotlib.figure import Figure as Canvas

    kinds = [kind for kind in results if kind != "all"]
    labels = [label for label in results["all"] if label != BASELINE]
    canvas = Canvas(figsize=(9, 4), layout="constrained")
    axes = canvas.subplots()
    width = 0.8 / len(labels)
    for i, (label, hatch, shade) in enumerate(
        zip(labels, ("", "//", "xx", ".."), ("0.35", "0.85", "0.65", "1.0"), strict=False)
    ):
        places = [number + (i - (len(labels) - 1) / 2) * width for number in range(len(kinds))]
        heights = [results[kind][label]["tokens_per_forward"] for kind in kinds]
        axes.bar(places, heights, width, label=label, hatch=hatch, color=shade, edgecolor="black")
    axes.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.axhline(1.0, color="0.5", linewidth=1, linestyle=(0, (1, 3)), label="autoregressive")
    axes.set(xlabel="kind of text", ylabel="tokens per forward")
    axes.legend(fontsize="small")
    canvas.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--model", default=str(DEMO_FOLDER), help="a checkpoint; the demo by default")
    parser.add_argument("--num-questions", type=int, default=100, help="held-out questions of each kind")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--plots", type=Path, default=REPOSITORY / "docs" / "evidence")
    parser.add_argument("--work", type=Path, default=Path("build/ablations"), help="where answers are kept")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = WeDLMForCausalLM.from_pretrained(given.model).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    digest = weights_digest(Path(given.model))
    identity = {"weights_sha256": digest, "num_questions": given.num_questions, "max_new_tokens": MAX_NEW_TOKENS}
    # Of the same commit, as the file will say; and of the same code of decoding, where there are changes.
    same = {**conditions(device), "code": digest_of(flat_files())}
    work = WorkFile(given.work, {**identity, **same, "figure": given.figure})
    results = measure(FIGURES[given.figure], model, tokenizer, given.num_questions, work)
    name = given.figure.replace("-", "_")
    write_report(given.out / f"ablation_{name}.json", results, device, **identity)
    draw(given.figure, results, given.plots / f"{name}.png")
    print(table(results))


if __name__ == "__main__":
    main()
