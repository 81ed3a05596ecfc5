"""The paper's figures of decoding on the demo checkpoint: quality and speed of the same texts, decodings in turns.

    python benchmarks/ablations.py threshold|penalty|streaming-blockwise|pareto|window|kinds [--num-questions 100]

Each figure becomes benchmarks/results/ablation_FIGURE.json and docs/evidence/FIGURE.png, and a run that was stopped
goes on. `make ablations` makes all of them and then writes docs/EVIDENCE.md.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from ablations_plot import KIND, SPEED, draw
from common import RESULTS, load, markdown
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.tasks import KINDS, Example, check, held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.provenance import REPOSITORY, conditions, weights_digest, write_report
from wedlm.evaluation.sweep import Answer, Question, summaries, sweep
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.hub_code import flat_files

MAX_NEW_TOKENS = 160
MATHS = ("word_problems", "equations")  # in place of the paper's MATH and GSM8K
THRESHOLDS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5]


class Figure(NamedTuple):
    kinds: tuple[str, ...]
    decodings: dict[str, dict]  # by label, without the baseline
    x: str  # an argument of generate(), SPEED or KIND
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
        SPEED,
        "times as fast as autoregressive",
    ),
    "window": Figure(
        MATHS,
        combinations(["streaming", "verified"], window_size=[2, 4, 8, 16, 32]),
        "window_size",
        "window (slots)",
    ),
    "kinds": Figure(KINDS, combinations(["streaming", "blockwise", "verified"]), KIND, "kind of text"),
}


def questions_of(kind: str, number: int, tokenizer: PreTrainedTokenizerBase) -> list[Question]:
    def question(example: Example) -> Question:
        ids = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True, return_dict=True)
        return Question(ids["input_ids"], lambda text: float(check(kind, example.prompt, text)))

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
        for kind in figure.kinds
    }
    together: dict[str, list[Answer]] = {
        label: [answer for answers in by_kind.values() for answer in answers[label]] for label in decodings
    }
    return {kind: summaries(answers, decodings) for kind, answers in {**by_kind, "all": together}.items()}


def table(results: dict[str, dict[str, dict]]) -> str:
    """For docs/EVIDENCE.md: the questions together, or each kind where there are many."""
    header = ["decoding", "right", "over autoregressive", "tokens per forward", "cacheable", "times autoregressive"]
    kinds = ["all"] if len(results) < 6 else [kind for kind in results if kind != "all"]
    lines = []
    for kind in kinds:
        for label, numbers in results[kind].items():
            low, high = (100 * bound for bound in numbers["quality_over_autoregressive_interval"])
            times = numbers["times_autoregressive"]
            slow, fast = times["quartiles"]
            lines.append(
                [
                    label if kind == "all" else f"{kind.replace('_', ' ')}: {label}",
                    f"{100 * numbers['quality']:.1f} %",
                    "" if label == BASELINE else f"{low:+.1f} to {high:+.1f}",
                    f"{numbers['tokens_per_forward']:.2f}",
                    f"{numbers['prefix_cacheability']:.2f}",
                    "" if label == BASELINE else f"{times['median']:.2f} ({slow:.2f} to {fast:.2f})",
                ]
            )
    return markdown(header, lines, left={"decoding"})


def give_papers_settings(model: PreTrainedModel) -> dict[str, float]:
    """Sets and returns the paper's threshold and penalty; a checkpoint may have others that suit it."""
    settings = {name: DEFAULTS[name] for name in ("entropy_threshold", "distance_penalty")}
    model.generation_config.update(**settings)
    return settings


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
    model, tokenizer = load(given.model)
    model.to(device)
    settings = give_papers_settings(model)
    digest = weights_digest(Path(given.model))
    identity = {"weights_sha256": digest, "num_questions": given.num_questions, "max_new_tokens": MAX_NEW_TOKENS}
    identity |= settings
    # Answers are kept for the commit that the file will name, and if there are changes for the same code of decoding.
    same = {**conditions(device), "code": digest_of(flat_files())}
    work = WorkFile(given.work, {**identity, **same, "figure": given.figure})
    figure, name = FIGURES[given.figure], given.figure.replace("-", "_")
    results = measure(figure, model, tokenizer, given.num_questions, work)
    write_report(given.out / f"ablation_{name}.json", results, device, **identity)
    draw(figure.x, figure.x_label, results, given.plots / f"{name}.png")
    print(table(results))


if __name__ == "__main__":
    main()
