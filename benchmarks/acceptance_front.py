"""Quality and speed of verified decoding by its acceptance ratio, beside streaming by its threshold.

    python benchmarks/acceptance_front.py [--num-questions 40] [--out ...results/acceptance_front.json]

All settings answer the same held-out questions of all six kinds on the demo checkpoint, one at a time and in turns,
with the same window. The plot becomes docs/evidence/acceptance_front.png, and `python benchmarks/evidence.py` writes
the section of docs/EVIDENCE.md. A run that was stopped goes on.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from ablations import MAX_NEW_TOKENS, Figure, give_papers_settings, measure
from ablations_plot import SPEED, draw_panel, panels
from common import load, markdown, new_parser
from verdicts import right, times

from examples.demo.tasks import KINDS
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.decodings import combinations
from wedlm.evaluation.provenance import REPOSITORY, conditions, weights_digest, write_report
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.modeling_wedlm.hub_code import flat_files

FIGURE = Figure(
    KINDS,
    combinations(["streaming"], [16], entropy_threshold=[0.05, 0.1, 0.2, 0.4, 0.6, 0.9])
    | combinations(["verified"], [16], acceptance_ratio=[1.0, 0.7, 0.5, 0.3, 0.1, 0.03]),
    SPEED,
    "times as fast as autoregressive",
)


def draw(results: dict[str, dict[str, dict]], path: Path) -> None:
    """A panel for each kind, with a line for each of the two decodings."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(13, 7.5), layout="constrained")
    for axes, kind in zip(drawing.subplots(2, 3).flat, KINDS, strict=True):
        (panel,) = panels(FIGURE.x, results[kind])
        draw_panel(panel, axes, has_settings=False)
        axes.set(title=kind.replace("_", " "), xlabel=FIGURE.x_label, ylabel=panel.y_label)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=90, metadata={"Software": None})


def short(label: str) -> str:
    return label.replace(", window 16", "")


def table(results: dict[str, dict[str, dict]]) -> str:
    """For docs/EVIDENCE.md: a line for each setting, and a column for each kind."""
    lines = [
        [
            short(label),
            *(
                f"{right(of[label]):.1f} %, {of[label]['tokens_per_forward']:.1f}, {times(of[label]):.1f} ×"
                for of in (results[kind] for kind in KINDS)
            ),
        ]
        for label in results["all"]
    ]
    return markdown(["decoding", *(kind.replace("_", " ") for kind in KINDS)], lines, left={"decoding"})


def tokens_per_forward(numbers: dict) -> float:
    return numbers["tokens_per_forward"]


def unmatched(results: dict[str, dict], speed: Callable = times) -> list[dict]:
    """The settings of streaming than which no ratio is both at least as right and at least as fast."""
    of_decoding = {
        decoding: [numbers for numbers in results.values() if numbers["arguments"]["decoding"] == decoding]
        for decoding in ("streaming", "verified")
    }
    return [
        one
        for one in of_decoding["streaming"]
        if not any(right(other) >= right(one) and speed(other) >= speed(one) for other in of_decoding["verified"])
    ]


def listed(values: list) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last


def finding(results: dict[str, dict]) -> str:
    """Where streaming is in front of every ratio on one kind of questions, beside the fastest ratio."""
    verified = [numbers for numbers in results.values() if numbers["arguments"]["decoding"] == "verified"]
    ahead = unmatched(results)
    if not ahead:
        return "Streaming is nowhere in front."
    thresholds = listed([one["arguments"]["entropy_threshold"] for one in ahead])
    best, fastest = max(ahead, key=right), max(verified, key=times)
    return (
        f"Streaming is in front with threshold {thresholds}: it has at most {right(best):.0f} % right, at "
        f"{times(best):.1f} times the speed of autoregressive decoding. The fastest ratio has {right(fastest):.0f} % "
        f"right at {times(fastest):.1f} times."
    )


def findings(results: dict[str, dict[str, dict]]) -> str:
    """For docs/EVIDENCE.md: the kinds on which no setting of streaming is in front, and a line for each kind."""
    above, by_forwards = (
        [kind.replace("_", " ") for kind in KINDS if not unmatched(results[kind], speed)]
        for speed in (times, tokens_per_forward)
    )
    verdict = (
        f"On {len(above)} of {len(KINDS)} kinds of questions ({', '.join(above) or 'none'}), each threshold of "
        "streaming has a ratio that is at least as often right and at least as fast. Measured in tokens per "
        f"forward, there are {len(by_forwards)} such kinds ({', '.join(by_forwards) or 'none'})."
    )
    lines = [f"- {kind.replace('_', ' ').capitalize()}. {finding(results[kind])}" for kind in KINDS]
    return "\n".join([f"**Here.** {verdict}", "", *lines])


def main() -> None:
    parser = new_parser(__doc__, "acceptance_front")
    parser.add_argument("--num-questions", type=int, default=40, help="held-out questions of each kind")
    parser.add_argument("--plot", type=Path, default=REPOSITORY / "docs" / "evidence" / "acceptance_front.png")
    parser.add_argument("--work", type=Path, default=Path("build/acceptance_front"), help="where answers are kept")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load()
    model.to(device)
    identity = {
        "weights_sha256": weights_digest(DEMO_FOLDER),
        "num_questions": given.num_questions,
        "max_new_tokens": MAX_NEW_TOKENS,
        **give_papers_settings(model),
    }
    work = WorkFile(given.work, {**identity, **conditions(device), "code": digest_of(flat_files())})
    results = measure(FIGURE, model, tokenizer, given.num_questions, work)
    write_report(given.out, results, device, **identity)
    draw(results, given.plot)
    print(table(results))


if __name__ == "__main__":
    main()
