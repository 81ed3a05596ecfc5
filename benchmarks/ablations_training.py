"""The paper's two ablations of training, on a model that two CPU cores train in minutes.

    python benchmarks/ablations_training.py block-size
    python benchmarks/ablations_training.py inside-block

1. A random model learns two kinds of the demo's tasks, functions and equations, token by token. It is the base.
2. Variants go on from the base with WeDLM's objective, with the same steps on the same data in the same order:
   with causal attention in blocks of 4, 8 and 32 (block-size), or with causal and with bidirectional attention in
   blocks of 32 (inside-block). In a bidirectional block a prediction sees its whole block, which bidirectional.py does
   and the package does not.
   End tokens fill every sample up to whole blocks of 32, for the base as well. Otherwise the number of MASK tokens in
   its last block would tell a bidirectional variant where the text ends, and nothing does so in decoding.
3. All models answer the same held-out questions with one token per forward, the one with the lowest entropy, as in the
   paper's measurements of quality. Bidirectional blocks cannot be streamed, so variant_decoding.py decodes both kinds
   of attention blockwise: with a window as large as the blocks of training, and with the paper's window of 6.
4. The numbers go into a JSON file, and the plot is drawn from that file alone.

Checkpoints and answers are kept in a work folder. A run that was stopped goes on there, and the second ablation finds
the base and the blocks of 32 of the first one. There is one seed of training, so the intervals cover the choice of
questions and nothing else.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ablations_training_plot
import numpy as np
import torch
from common import RESULTS, markdown
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from variant_decoding import decode
from variant_training import KINDS, LARGEST_BLOCK, ROW_TOKENS, Variant, kept, trained, training_rows

from examples.demo.model import random_model
from examples.demo.tasks import Example, batch_of, check, held_out_examples
from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.provenance import REPOSITORY, conditions, write_report
from wedlm.evaluation.resampling import paired_bounds
from wedlm.evaluation.work_file import digest_of

MAX_NEW_TOKENS = 96  # three of the largest windows; the longest right answer has 73
PAPERS_WINDOW, PAPERS_PENALTY = 6, 0.1
BATCH_SIZE = 100
REFERENCE = Variant(LARGEST_BLOCK, "causal")
VARIANTS = {
    "block-size": [Variant(4, "causal"), Variant(8, "causal"), REFERENCE],
    "inside-block": [REFERENCE, Variant(LARGEST_BLOCK, "bidirectional")],
}
BASE = "base"
TOKEN_BY_TOKEN = "token by token"
BOTH = "both"  # kinds
COMPARED_WITH = (BASE, "reference")
# The settings that decide the weights.
SETTINGS = ("base_steps", "steps", "learning_rate", "rows_per_step", "hidden_size", "num_layers")
CODE = ("ablations_training.py", "bidirectional.py", "variant_decoding.py", "variant_training.py")
# Figures 5b and 5c of the paper in percentage points over the autoregressive base. Figure 5b has averages; that of
# blocks of 32 is WeDLM-7B's, whose base has 67.21.
PAPER = {
    "block-size": {"Qwen2.5-7B": [71.23 - 67.21, 70.45 - 67.21, 70.84 - 67.21]},
    "inside-block": {
        "Qwen3-0.6B": [-3.91, -5.02],
        "Qwen2.5-1.5B": [-0.57, -0.48],
        "Qwen2.5-7B": [+3.63, -0.11],
    },
}
X_LABELS = {"block-size": "block size in training (tokens)", "inside-block": "attention inside blocks of 32 tokens"}

# --- Answers ---


class Answer(NamedTuple):
    text: str
    is_right: bool


Write = Callable[[dict], torch.Tensor]  # from the inputs of a batch to its new tokens, whatever follows the end token
Answers = dict[tuple[str, str], dict[str, list[Answer]]]  # by model and decoding, then by kind


def answers_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], write: Write
) -> list[Answer]:
    answers, end = [], tokenizer.eos_token_id
    for start in range(0, len(examples), BATCH_SIZE):
        part = examples[start : start + BATCH_SIZE]
        for question, written in zip(part, write(batch_of(tokenizer, part, model.device)).tolist(), strict=True):
            written = written[: written.index(end) + 1] if end in written else written
            text = tokenizer.decode(written, skip_special_tokens=True)
            answers.append(Answer(text, check(question.kind, question.prompt, text)))
    return answers


def write_token_by_token(model: PreTrainedModel, inputs: dict) -> torch.Tensor:
    output = model.generate(**inputs, decoding="autoregressive", do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    return output[:, inputs["input_ids"].shape[1] :]


def write_in_windows(model: PreTrainedModel, variant: Variant, window_size: int, inputs: dict) -> torch.Tensor:
    return decode(model, inputs, variant.inside, window_size, PAPERS_PENALTY, MAX_NEW_TOKENS)


def ways_to_write(model: PreTrainedModel, variant: Variant | None = None) -> dict[str, Write]:
    """The decodings of a model by name; the base is decoded token by token only."""
    ways = {TOKEN_BY_TOKEN: partial(write_token_by_token, model)}
    if variant is not None:
        ways["window of its blocks"] = partial(write_in_windows, model, variant, variant.block_size)
        ways[f"window of {PAPERS_WINDOW}"] = partial(write_in_windows, model, variant, PAPERS_WINDOW)
    return ways


class Work:
    """Trains and asks the models of both ablations, and keeps checkpoints and answers in a folder."""

    def __init__(self, given: argparse.Namespace):
        self.given = given
        settings = {name: getattr(given, name) for name in SETTINGS if name != "steps"}  # all steps share one base
        # A folder is for the commit that the file will name, and where there are changes for the code of the ablation.
        code = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in CODE]
        self.folder = given.work / digest_of({**settings, **conditions("cpu"), "code": code})
        self.tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
        self.examples = {kind: held_out_examples(kind, given.num_questions) for kind in KINDS}

    def folder_of(self, name: str) -> Path:
        return self.folder / (name if name == BASE else f"{name}, {self.given.steps} steps")

    def base(self) -> tuple[PreTrainedModel, dict]:
        given = self.given
        return trained(
            self.folder_of(BASE),
            lambda: random_model(self.tokenizer, given.hidden_size, given.num_layers, head_dim=48),
            lambda: training_rows(self.tokenizer, 0, given.base_steps * given.rows_per_step),
            given.base_steps,
            given,
        )

    def variant(self, variant: Variant) -> tuple[PreTrainedModel, dict]:
        given = self.given
        num_base_rows, num_rows = (steps * given.rows_per_step for steps in (given.base_steps, given.steps))
        return trained(
            self.folder_of(variant.name),
            lambda: WeDLMForCausalLM.from_pretrained(self.folder_of(BASE) / "checkpoint"),
            lambda: training_rows(self.tokenizer, num_base_rows, num_rows),
            given.steps,
            given,
            variant,
        )

    def answers(self, name: str, decoding: str, model: PreTrainedModel, write: Write) -> dict[str, list[Answer]]:
        made = kept(
            self.folder_of(name) / f"{self.given.num_questions} answers, {decoding}.json",
            lambda: {kind: answers_of(model, self.tokenizer, self.examples[kind], write) for kind in KINDS},
        )
        answers = {kind: [Answer(*one) for one in made[kind]] for kind in KINDS}
        right = {kind: np.mean([one.is_right for one in answers[kind]]) for kind in KINDS}
        print(f"{name}, {decoding}: right", *(f"{kind} {share:.1%}" for kind, share in right.items()), flush=True)
        return answers


def measure(variants: list[Variant], given: argparse.Namespace) -> tuple[dict[str, dict], Answers]:
    """The logs of training by model, and the answers."""
    work, logs, answers = Work(given), {}, {}
    for variant in (None, *variants):
        name = BASE if variant is None else variant.name
        model, logs[name] = work.base() if variant is None else work.variant(variant)
        for decoding, write in ways_to_write(model, variant).items():
            answers[name, decoding] = work.answers(name, decoding, model, write)
    return logs, answers


# --- Results ---


def summaries(answers: Answers) -> list[dict]:
    """The numbers of each kind, model and decoding. Intervals hold 95 % and compare question by question."""
    measured = []
    for kind in (*KINDS, BOTH):
        is_right = {
            way: np.array(
                [answer.is_right for one in of_kind if kind in (one, BOTH) for answer in of_kind[one]], dtype=float
            )
            for way, of_kind in answers.items()
        }
        for (model, decoding), right in is_right.items():
            numbers = {"model": model, "decoding": decoding, "kind": kind, "accuracy": right.mean()}
            others = {"base": (BASE, TOKEN_BY_TOKEN), "reference": (REFERENCE.name, decoding)} if model != BASE else {}
            for name, way in others.items():
                numbers[f"over_{name}"] = right.mean() - is_right[way].mean()
                numbers[f"over_{name}_interval"] = paired_bounds(right, is_right[way])
            measured.append(numbers)
    return measured


def difference(numbers: dict, other: str) -> str:
    if numbers["model"] == BASE or (numbers["model"] == REFERENCE.name and other == "reference"):
        return ""
    low, high = numbers[f"over_{other}_interval"]
    return f"{100 * numbers[f'over_{other}']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def table(results: dict) -> str:
    """For docs/EVIDENCE.md: right answers in %, and differences in percentage points with their intervals."""
    of = {(numbers["model"], numbers["decoding"], numbers["kind"]): numbers for numbers in results["rows"]}
    lines = []
    for model, decoding in dict.fromkeys(key[:2] for key in of):
        measured = [of[model, decoding, kind] for kind in (*KINDS, BOTH)]
        differences = [difference(measured[-1], other) for other in COMPARED_WITH]
        lines.append([model, decoding, *(f"{numbers['accuracy']:.1%}" for numbers in measured), *differences])
    header = ["model", "decoding", *KINDS, "both", "over the base", f"over {REFERENCE.name}"]
    return markdown(header, lines, left={"model", "decoding"})


def plot(report: dict, path: Path) -> None:
    ablation = report["ablation"]
    labels = {variant.name: str(variant[ablation == "inside-block"]) for variant in VARIANTS[ablation]}
    ablations_training_plot.draw(report, labels, X_LABELS[ablation], path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ablation", choices=VARIANTS)
    parser.add_argument("--base-steps", type=int, default=2000, help="of training token by token")
    parser.add_argument("--steps", type=int, default=1200, help="of training of each variant")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--rows-per-step", type=int, default=4, help=f"rows of the batch, of {ROW_TOKENS} tokens each")
    parser.add_argument("--hidden-size", type=int, default=96)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--num-questions", type=int, default=250, help="held-out ones of each kind")
    parser.add_argument("--save-steps", type=int, default=100, help="steps between checkpoints to go on from")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build" / "ablations-training")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/ablation_....json")
    parser.add_argument("--plot", type=Path, help="by default docs/evidence/....png")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    name = given.ablation.replace("-", "_")
    out = given.out or RESULTS / f"ablation_{name}.json"
    logs, answers = measure(VARIANTS[given.ablation], given)
    results = {"models": logs, "rows": summaries(answers), "paper": PAPER[given.ablation]}
    settings = {name: getattr(given, name) for name in (*SETTINGS, "num_questions")}
    write_report(out, results, "cpu", ablation=given.ablation, **settings)
    plot(json.loads(out.read_text(encoding="utf-8")), given.plot or REPOSITORY / "docs" / "evidence" / f"{name}.png")
    print(table(results))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
