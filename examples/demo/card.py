"""Writes the demo checkpoint's model card from the numbers beside it: python -m examples.demo.card [FOLDER]."""

import json
import sys
from pathlib import Path

from examples.demo.report import goals
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import CardContent, EvaluationSection, Section, make_card
from wedlm.hub_card.checkpoint import read_checkpoint
from wedlm.hub_card.markdown import escaped, number, shown_command, shown_versions, table
from wedlm.hub_card.reports import read_training

METADATA = {"license": "apache-2.0", "language": "en", "tags": ["diffusion", "parallel-decoding"]}

INTRODUCTION = """\
It is a small model for trying parallel decoding, and for tests and benchmarks. It answers six kinds of questions and
nothing else. Some kinds have one right answer (counting), others leave many choices (stories). The model was trained
from scratch on generated data only; the training steps took {minutes} minutes on {device} ({threads} threads)."""

CONDITIONS = """\
The model answered {num_examples:,} held-out questions of each kind with each decoding, greedily, with at most 160 new
tokens. None of these problems is in the training data, in any wording. The columns of the tables are:

- *Right*: the share of answers that a checker accepts. The checker runs functions and follows the steps of solutions.
  It accepts a story that has the requested form and keeps to the people, the thing and the place of the question.
- *Over autoregressive*: how much larger this share is than with autoregressive decoding on the same questions, in
  percentage points, as a 95 % confidence interval.
- *NLL*: the negative log-likelihood of the answer under this model, each token given the tokens before it, in nats
  per token.
- *Tokens/s*: the median at batch size 1, over {num_timed} questions of each kind in {rounds} rounds, in which the
  decodings take turns.
- *Times as fast*: the speed as a multiple of autoregressive speed: the median, with the interquartile range.

Measured on {device}, {threads} threads, {versions}, {commit}:"""

EXPECTATIONS = """\
- The model answers questions like those that `examples/demo/` in the repository generates: in English, with numbers
  of at most three digits. Any other question gets an answer that looks like one of the six kinds.
- The more predictable the text, the more tokens a forward pass can fill. Stories leave many choices, but later
  stages of the training used stories that the model itself had written, and it tells nearly the same ones again.
- Most of a forward pass of such a small model is overhead, so its tokens per second say little about large models."""

RECIPE = """\
In the repository, `make demo-model` trains such a checkpoint, and `make demo-report` measures it and writes this card.
The sections on training and evaluation show the commands and versions of their commits, where `examples.demo` was
still `wedlm.demo`; other versions of wedlm can be faster or slower. WeDLMTrainer trained the model with the
dual-stream objective. `training.json` has the losses, and `report.json` all other numbers."""


def content_of(folder: Path) -> CardContent:
    """Returns what the card of the demo checkpoint in `folder` says."""
    report, training = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("report.json", "training.json")
    )
    shown = report["examples"]
    return CardContent(
        title="WeDLM demo",
        repository="wedlm-demo",
        prompt=shown[0]["prompt"],
        checkpoint=read_checkpoint(str(folder), folder),
        metadata=METADATA,
        introduction=INTRODUCTION.format(
            minutes=round(training["seconds"] / 60), device=training["device"], threads=training["threads"]
        ),
        examples=shown,
        evaluations=[evaluation_section(report)],
        training=read_training(folder / "training.json"),
        loss_plot=folder / "loss.png",
        sections=[
            Section("Likelihood of held-out answers", likelihoods(report["held_out_nll"])),
            Section("Expectations", EXPECTATIONS),
            Section("How it was made", RECIPE),
        ],
    )


def card(folder: Path) -> str:
    """Returns the text of README.md, front matter included."""
    return make_card(content_of(folder)).content


def evaluation_section(report: dict) -> EvaluationSection:
    shown = {"versions": shown_versions(report["versions"]), "commit": commit_text(report["commit"])}
    conditions = CONDITIONS.format(**report | shown)
    tasks = [Section(words(kind).capitalize(), kind_table(of)) for kind, of in report["results"].items()]
    return EvaluationSection(conditions, shown_command(report["command"]), tasks)


def kind_table(results: dict[str, dict]) -> str:
    """Returns the table of one kind, with a line for each decoding."""
    head = ["decoding", "right", "over autoregressive", "tokens per pass", "cacheable", "NLL", "tokens/s"]
    lines = [[*head, "times as fast"]]
    for decoding, result in results.items():
        least, most = (100 * points for points in result["accuracy_over_autoregressive_interval"])
        times, (low, high) = result["times_autoregressive"]["median"], result["times_autoregressive"]["quartiles"]
        line = [
            decoding,
            f"{100 * result['accuracy']:.1f} %",
            f"{least:+.1f} to {most:+.1f}",
            number(result["tokens_per_forward"], 2),
            number(result["prefix_cacheability"], 2),
            number(result["nll_per_token"], 3),
            number(result["tokens_per_second"]["median"], 0),
            f"{times:.1f} ({low:.1f} to {high:.1f})",
        ]
        if decoding == BASELINE:
            line[2] = line[-1] = ""  # a comparison with itself
        lines.append(line)
    return table(lines)


def likelihoods(held_out_nll: dict[str, float]) -> str:
    lines = [["kind", "NLL"], *([words(kind), number(nll, 3)] for kind, nll in held_out_nll.items())]
    title = "The negative log-likelihood of right answers to held-out questions under this model, in nats per token:"
    return f"{title}\n\n{table(lines)}"


def goals_table(report: dict) -> str:
    """Returns the table of docs/figures.md: the goals of the checkpoint beside what it reached."""
    lines = [["goal", "target", "reached", "result"]]
    for goal, target, reached in goals(report["results"]):
        result = "met" if reached >= target else "missed"
        lines.append([escaped(words(goal)), f"{target:g}", f"{reached:.3g}", result])
    return table(lines)


def words(name: str) -> str:
    return name.replace("_", " ")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO_FOLDER
    write_whole(folder / "README.md", card(folder))


if __name__ == "__main__":
    main()
