"""Do the paper's figures of decoding hold on the demo checkpoint? Quality and speed of the same texts, in turns.

    python benchmarks/ablations.py threshold|penalty|streaming-blockwise [--num-questions 100]

Each figure becomes benchmarks/results/ablation_FIGURE.json and docs/evidence/FIGURE.png, and a run that was stopped
goes on. `make ablations` makes all of them and then writes docs/figures.md.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import RESULTS, markdown
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.tasks import Example, check, held_out_examples
from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.provenance import REPOSITORY, conditions, weights_digest, write_report
from wedlm.evaluation.sweep import Question, summaries, sweep
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.hub_code import flat_files

MAX_NEW_TOKENS = 160
KINDS = ("word_problems", "equations")  # in place of the paper's MATH and GSM8K
ALL = "all"


class Figure(NamedTuple):
    decodings: dict[str, dict]  # by label, without the baseline
    x: str  # an argument of generate()
    x_label: str


FIGURES = {
    "threshold": Figure(
        combinations(["streaming"], entropy_threshold=[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5]),
        "entropy_threshold",
        "entropy threshold (nats)",
    ),
    "penalty": Figure(
        combinations(["streaming"], distance_penalty=[0.0, 0.01, 0.02, 0.05, 0.1, 0.2]),
        "distance_penalty",
        "distance penalty (nats per slot)",
    ),
    "streaming-blockwise": Figure(
        combinations(["streaming", "blockwise"], entropy_threshold=[0.1, 0.2, 0.3, 0.5, 0.7, 0.9]),
        "entropy_threshold",
        "entropy threshold (nats)",
    ),
}


def file_of(name: str) -> str:
    return f"ablation_{name.replace('-', '_')}.json"


def plot_of(name: str) -> str:
    return f"{name.replace('-', '_')}.png"


def questions_of(kind: str, number: int, tokenizer: PreTrainedTokenizerBase) -> list[Question]:
    def question(example: Example) -> Question:
        ids = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True, return_dict=True)
        return Question(ids["input_ids"], lambda text: float(check(example, text)))

    return [question(example) for example in held_out_examples(kind, number)]


def measure(
    figure: Figure,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    num_questions: int,
    work: WorkFile,
) -> dict[str, dict[str, dict]]:
    """The summaries by kind and label; "all" is the questions of all kinds together."""
    decodings = {BASELINE: {"decoding": BASELINE}, **figure.decodings}
    by_kind = {
        kind: sweep(model, tokenizer, questions_of(kind, num_questions, tokenizer), decodings, MAX_NEW_TOKENS, work)
        for kind in KINDS
    }
    by_kind[ALL] = {
        label: [answer for answers in by_kind.values() for answer in answers[label]] for label in decodings
    }
    return {kind: summaries(answers, decodings) for kind, answers in by_kind.items()}


def table(results: dict[str, dict[str, dict]]) -> str:
    """For docs/figures.md: the questions of all kinds together."""
    header = ["decoding", "right", "over autoregressive", "tokens per pass", "cacheable", "times autoregressive"]
    lines = []
    for label, numbers in results[ALL].items():
        low, high = (100 * bound for bound in numbers["quality_over_autoregressive_interval"])
        times = numbers["times_autoregressive"]
        slow, fast = times["quartiles"]
        lines.append(
            [
                label,
                f"{100 * numbers['quality']:.1f} %",
                "" if label == BASELINE else f"{low:+.1f} to {high:+.1f}",
                f"{numbers['tokens_per_forward']:.2f}",
                f"{numbers['prefix_cacheability']:.2f}",
                "" if label == BASELINE else f"{times['median']:.2f} ({slow:.2f} to {fast:.2f})",
            ]
        )
    return markdown(header, lines, left={"decoding"})


def draw(figure: Figure, summaries: dict[str, dict], path: Path) -> None:
    """Draws quality and speed: bars are 95 % intervals of the difference to autoregressive decoding, and quartiles."""
    from matplotlib.figure import Figure as Drawing

    base = summaries[BASELINE]["quality"]
    quality, speed = {}, {}
    for label, numbers in summaries.items():
        if label != BASELINE:
            arguments, times = numbers["arguments"], numbers["times_autoregressive"]
            low, high = numbers["quality_over_autoregressive_interval"]
            right = (100 * each for each in (numbers["quality"], max(base + low, 0), min(base + high, 1)))
            quality.setdefault(arguments["decoding"], []).append((arguments[figure.x], *right))
            point = (arguments[figure.x], times["median"], *times["quartiles"])
            speed.setdefault(arguments["decoding"], []).append(point)
    drawing = Drawing(figsize=(10.4, 4), layout="constrained")
    labels = ("right (% of the questions)", "times as fast as autoregressive")
    for axes, label, lines, level in zip(
        drawing.subplots(1, 2), labels, (quality, speed), (100 * base, 1.0), strict=True
    ):
        draw_lines(axes, lines)
        axes.axhline(level, color="0.7", linewidth=1, linestyle=(0, (1, 3)), label=BASELINE)
        axes.set(xlabel=figure.x_label, ylabel=label)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110, metadata={"Software": None})


def draw_lines(axes: Any, lines: dict[str, list[tuple[float, float, float, float]]]) -> None:
    """Draws points with bars; each has its place, its height, and the low and the high end of its bar."""
    for (label, points), style, shade in zip(lines.items(), ("o-", "s--"), ("0.0", "0.45"), strict=False):
        x, y, low, high = zip(*sorted(points), strict=True)
        bars = [[b - a for a, b in zip(low, y, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
        axes.errorbar(x, y, bars, fmt=style, color=shade, label=label, markersize=5, linewidth=1, capsize=2)
    if x[0] > 0:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{place:g}" for place in x], fontsize="small")
        axes.minorticks_off()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--model", default=str(DEMO_FOLDER), help="a checkpoint; the demo by default")
    parser.add_argument("--num-questions", type=int, default=100, help="held-out questions of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--plots", type=Path, default=REPOSITORY / "docs" / "evidence")
    parser.add_argument("--work", type=Path, default=Path("build/ablations"), help="where answers are kept")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = WeDLMForCausalLM.from_pretrained(given.model, dtype="auto").to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    settings = {name: DEFAULTS[name] for name in ("entropy_threshold", "distance_penalty")}
    model.generation_config.update(**settings)  # the paper's; a checkpoint may have others that suit it
    identity = {"weights_sha256": weights_digest(Path(given.model)), "num_questions": given.num_questions}
    identity |= {"max_new_tokens": MAX_NEW_TOKENS, **settings}
    # Answers are kept for the commit that the file will name, and if there are changes for the same code of decoding.
    same = {**conditions(device), "code": digest_of(flat_files())}
    work = WorkFile(given.work, {**identity, **same, "figure": given.figure})
    figure = FIGURES[given.figure]
    results = measure(figure, model, tokenizer, given.num_questions, work)
    write_report(given.out / file_of(given.figure), results, device, **identity)
    draw(figure, results[ALL], given.plots / plot_of(given.figure))
    print(table(results))


if __name__ == "__main__":
    main()
