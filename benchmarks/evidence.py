"""Writes docs/EVIDENCE.md from the files of the ablations, of evidence_real.py and of real_training.py.

    python benchmarks/evidence.py

A section has the paper's claim, the numbers measured here, and a verdict with its reason. The verdict is computed from
the numbers and chooses among the written reasons, so that no reason outlives its numbers.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

import ablations
import ablations_training
import acceptance_front
import evidence_real_page
import real_training_page
from common import RESULTS, markdown
from verdicts import (
    AGREES,
    CANNOT,
    DIFFERS,
    NOISE,
    Finding,
    judge_block_size,
    judge_inside_block,
    judge_kinds,
    judge_pareto,
    judge_penalty,
    judge_streaming,
    judge_threshold,
    judge_window,
)

from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.provenance import REPOSITORY, commit_text

PAGE = REPOSITORY / "docs" / "EVIDENCE.md"
NO_REASON = "the numbers show it, and the reason is not known."
HEAD = """\
# Evidence

This page repeats the figures of the paper ([arXiv 2512.22737](https://arxiv.org/abs/2512.22737)) on models that
anyone can run on two CPU cores. `make ablations` measures decoding on the demo checkpoint, and
`make ablations-training` trains small models for its figures. The paper's models have billions of parameters and
saw a hundred billion tokens, so the findings here hold for the method on small models and on texts of known
kinds. A forward takes a few milliseconds here, much of it overhead, so the speeds say little about a GPU.
[How it works](../README.md#how-it-works) defines windows, slots and drafts.

The last three sections are not about the paper's figures: one is about a setting that it does not have, which
`python benchmarks/acceptance_front.py` measures, the others about a real model, which `make evidence-real` measures
as it is and `make real-training` trains with the paper's objective. `python benchmarks/evidence.py` writes this page
from the files of these commands. A test compares them.

In the figures of decoding all settings answer the same held-out questions, one at a time, and take turns on each
question, so quality and speed are measured on the same texts. "Over autoregressive" is the 95 % interval of the
difference to autoregressive decoding, in percentage points. It comes from resampling the questions in pairs, and
is never narrower than the numbers of questions gained and lost allow. "Cacheable" is the paper's prefix
cacheability: generated tokens divided by the tokens that the model computed after the prompt. "Times
autoregressive" is the speed as a multiple of autoregressive speed, the median over the questions with quartiles.

In the figures of training the models answer in batches, and speed is not measured. Parentheses hold the 95 %
intervals of the differences. A difference whose interval contains zero is called noise. In the findings on decoding
noise is wider: it is that of two settings which answer different questions.
"""


class Section(NamedTuple):
    title: str
    name: str  # of the figure and its files
    paper: str  # the claim
    judge: Callable[[dict], Finding]  # from the results
    why: dict[str, str]  # the reason by outcome


SECTIONS = [
    Section(
        "Accuracy and speed against the entropy threshold",
        "threshold",
        "Figure 4a, WeDLM-7B-Instruct on MATH: accuracy is stable up to a threshold of 0.5 and then falls sharply. "
        "The recommended range is 0.3 to 0.6.",
        judge_threshold,
        {
            outcome: "on a model this small, accuracy falls at thresholds where the paper's accuracy is stable. Some "
            f"tokens that it fills there are wrong, and later tokens depend on them.{behind}"
            for outcome, behind in (
                ("falls early", ""),
                ("falls everywhere", " At higher thresholds accuracy falls further, as in the paper."),
            )
        }
        | {
            "falls late": "up to the default threshold and a little beyond it, accuracy changes little. Then it "
            "falls sharply, as in the paper."
        },
    ),
    Section(
        "Accuracy and speed against the distance penalty",
        "penalty",
        "Figure 4b: a penalty of 0.05 instead of 0.01 brings 2.6 points at 3 % less speed.",
        judge_penalty,
        {
            "better and slower": "the penalty helps, as in the paper, and costs more speed than there. This model "
            "errs in slots that it fills before the text that they depend on. A penalty delays distant slots, both "
            "right ones and wrong ones.",
            NOISE: "so few questions cannot show so small a change. The penalty delays distant slots and costs speed.",
        },
    ),
    Section(
        "Streaming against blockwise decoding",
        "streaming-blockwise",
        "Figure 4c: streaming is faster at every threshold; at 0.9, 423 against 221 tokens per second.",
        judge_streaming,
        {
            "faster and less right": "in streaming a slot is final as soon as no slot before it is open, so new slots "
            "open in every forward. Blockwise decoding is right more often here, perhaps because it fills no slot "
            "after the end of its window.",
            "faster": "in streaming a slot is final as soon as no slot before it is open, so new slots open in every "
            "forward.",
        },
    ),
    Section(
        "The front of quality and speed",
        "pareto",
        "Figure 5a, WeDLM-8B-Instruct on GSM8K, penalty 0.01: 92.3 % right at 1.97 times the speed of Qwen3-8B in "
        "vLLM (threshold 0.2), and above 79 % at 3.2 times (threshold 0.9).",
        judge_pareto,
        {
            "verified in front": "streaming gains speed and loses right answers, as in the paper. Verified decoding "
            "is on the front and loses none.",
        },
    ),
    Section(
        "The window",
        "window",
        "Quality was measured with a window of 6; the window is not varied.",
        judge_window,
        {
            "loses with many": "the paper makes no claim. With a large window the model fills slots before the "
            "text that they depend on.",
            "keeps": "the paper makes no claim. What the widest window loses is within noise.",
        },
    ),
    Section(
        "Tokens per forward by kind of text",
        "kinds",
        "The case study: counting to 200 runs at 1673 tokens per second, a linear equation at 745, an explanation of "
        "quantum physics at 198. The fewer choices a text leaves, the more tokens a forward fills.",
        judge_kinds,
        {
            "counting behind equations": "stories come last, as in the paper, but counting comes after equations. The "
            "answer to an equation repeats parts of the question, but each number of a count has to be computed.",
            "another order": "a story leaves many choices, but the model was trained on its own stories and tells "
            "nearly the same ones again, so it has few choices left. Each number of a count has to be computed.",
        },
    ),
    Section(
        "Block size in training",
        "block-size",
        "Figure 5b: training in blocks of 4, 8 and 32 gives averages of 71.23, 70.45 and 70.84, so the block size "
        "hardly matters.",
        judge_block_size,
        {
            "smaller blocks are better": "after so short a training the largest blocks have learned least, because "
            "their masked tokens stand farthest from known text. The paper trained long enough to remove this "
            "effect. There is one seed here, and models of this size cannot solve equations.",
        },
    ),
    Section(
        "Causal or bidirectional inside the block",
        "inside-block",
        "Figure 5c, the change from the autoregressive base with causal and with bidirectional attention inside a "
        "block: Qwen3-0.6B -3.91 and -5.02, Qwen2.5-1.5B -0.57 and -0.48, Qwen2.5-7B +3.63 and -0.11.",
        judge_inside_block,
        {
            NOISE: "so few questions and one seed of training cannot show a difference. In the paper, too, the two "
            "are only a few points apart.",
        },
    ),
]


ACCEPTANCE = """\
The ratio changes next to nothing on this checkpoint: nearly all drafts that are judged are the best token or far from
it, so that a lower ratio accepts few more. It may help a model that has many choices left. Streaming becomes faster as
its threshold rises, while more of its answers become wrong. So the ratio does not take the place of streaming where
wrong answers are acceptable; elsewhere verified decoding is the better choice, with a ratio of 1."""


def file_of(name: str) -> str:
    return f"ablation_{name.replace('-', '_')}.json"


def report_of(name: str) -> dict:
    return json.loads((RESULTS / file_of(name)).read_text(encoding="utf-8"))


def conditions(report: dict) -> str:
    versions, threads = report["versions"], report["threads"]
    return (
        f"{report['device']}, {threads} thread{'s' * (threads != 1)}, torch {versions['torch']}, transformers "
        f"{versions['transformers']}, {commit_text(report['commit'])}"
    )


def section(described: Section, report: dict) -> str:
    found = described.judge(report["results"])
    plot = f"evidence/{described.name.replace('-', '_')}.png"
    file = file_of(described.name)
    module = ablations_training if described.name in ablations_training.VARIANTS else ablations
    return f"""\
## {described.title}

**The paper.** {described.paper}

**Here.** {found.numbers}

**{found.verdict}**: {described.why.get(found.outcome, NO_REASON)}

![{described.title}]({plot})

{module.table(report["results"])}

`{report["command"]}`, in [{file}](../benchmarks/results/{file}): {conditions(report)}.
"""


def acceptance_section() -> str:
    report = json.loads((RESULTS / "acceptance_front.json").read_text(encoding="utf-8"))
    return f"""\
## The acceptance ratio

Verified decoding is not in the paper. With an `acceptance_ratio` below 1 it also accepts a draft whose probability is
at least that share of the best token's. Here verified decoding with several ratios and streaming with several
thresholds, both with a window of 16, answer {report["num_questions"]} questions of each kind.

{acceptance_front.findings(report["results"])}

{ACCEPTANCE}

![The acceptance ratio](evidence/acceptance_front.png)

Each cell has the right answers, the tokens per forward, and the speed as a multiple of autoregressive speed.

{acceptance_front.table(report["results"])}

`{report["command"]}`, in [acceptance_front.json](../benchmarks/results/acceptance_front.json): {conditions(report)}.
"""


def real_section() -> str:
    parts = {
        evidence_real_page.FILE: evidence_real_page.section,
        evidence_real_page.BFLOAT16_FILE: evidence_real_page.bfloat16_part,
    }
    reports = {file: json.loads(file.read_text(encoding="utf-8")) for file in parts}
    return "\n".join(part(reports[file], conditions(reports[file])) for file, part in parts.items())


def trained_section() -> str:
    if not real_training_page.FILE.exists():
        return f"{real_training_page.TITLE}\n\n`make real-training` measures it; nothing has been recorded yet.\n"
    report = json.loads(real_training_page.FILE.read_text(encoding="utf-8"))
    return real_training_page.section(report, conditions(report))


def verdict_table() -> str:
    """The sections with their verdicts, behind a sentence that counts them."""
    found = {described.title: described.judge(report_of(described.name)["results"]).verdict for described in SECTIONS}
    agree, differ, cannot = (list(found.values()).count(verdict) for verdict in (AGREES, DIFFERS, CANNOT))
    rows = [[f"[{title}](#{title.lower().replace(' ', '-')})", verdict.lower()] for title, verdict in found.items()]
    return f"""\
Of {len(found)} findings {agree} agree with the paper's, {differ} differ, and {cannot} cannot be judged.

{markdown(["finding", "verdict"], rows, left=["finding", "verdict"])}
"""


def page() -> str:
    sections = [section(described, report_of(described.name)) for described in SECTIONS]
    return "\n".join([HEAD, verdict_table(), *sections, acceptance_section(), real_section(), trained_section()])


def main() -> None:
    write_whole(PAGE, page())
    print(f"written to {PAGE.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
