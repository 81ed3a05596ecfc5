"""docs/EVIDENCE.md, written from the files that the ablations wrote.

    python benchmarks/evidence.py

Each section has the paper's claim, what was measured here, and what that says about the claim. Whether it agrees is
computed from the numbers; a verdict that has no reason written for it is an error, so that none outlives its numbers.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import ablations
import ablations_training

from wedlm.hub_card.evaluation.decodings import BASELINE, label_of
from wedlm.hub_card.provenance import REPOSITORY

PAGE = REPOSITORY / "docs" / "EVIDENCE.md"
RESULTS = REPOSITORY / "benchmarks" / "results"
AGREES, DIFFERS, CANNOT = "Agrees", "Differs", "Cannot be judged"

HEAD = """\
# Evidence

The paper's figures ([arXiv 2512.22737](https://arxiv.org/abs/2512.22737)) on models that anyone can run again
on two CPU cores: `make ablations` measures decoding on the demo checkpoint, `make ablations-training` trains
small models of its own. The paper's models have billions of parameters and saw a hundred billion tokens;
whatever is found here is about the method on small models and texts of known kinds. Figures about speed count a
forward of a few milliseconds, of which much is overhead, so they say little about a GPU.

This page is written by `python benchmarks/evidence.py` from the files that the commands wrote, and a test
compares it with them. Every setting answers the same held-out questions, one at a time, the settings taking
turns on each, so quality and speed are of the same texts. "Over autoregressive" is where the difference lies,
in percentage points: what holds 95 % of the resamples of the questions in pairs, and never narrower than what
the counts of pairs that lost and gained allow. "Cacheable" is the paper's prefix cacheability. The speed is the
median over the questions, with quartiles.
"""


class Section(NamedTuple):
    title: str
    name: str  # of the figure, and of its files
    paper: str
    judge: Callable[[dict], tuple[str, str]]  # of the results: a verdict, and what was found in a sentence
    why: dict[str, str]  # by verdict


def label(**arguments) -> str:
    return label_of({"decoding": "streaming", **arguments})


def right(row: dict) -> float:
    return 100 * row["quality"]


def times(row: dict) -> float:
    return row["times_autoregressive"]["median"]


def noise(one: dict, other: dict) -> float:
    """Half the width of the 95 % interval of a difference of two settings, in points, as if not of the same questions.

    Which they are, so that it is less.
    """
    shares = ((row["quality"], row["num_questions"]) for row in (one, other))
    return 196 * sqrt(sum(share * (1 - share) / number for share, number in shares))


def judge_threshold(results: dict) -> tuple[str, str]:
    rows = {row["arguments"]["entropy_threshold"]: row for row in results["all"].values() if len(row["arguments"]) > 1}
    low, middle, high = rows[min(rows)], rows[0.5], rows[max(rows)]
    early, late = right(low) - right(middle), right(middle) - right(high)
    found = (
        f"From threshold {min(rows)} to 0.5 accuracy falls by {early:.1f} points, from there to {max(rows)} by "
        f"{late:.1f}; the speed goes from {times(low):.1f} to {times(middle):.1f} and {times(high):.1f} times that of "
        f"autoregressive decoding, which has {right(results['all'][BASELINE]):.1f} % right."
    )
    if early > noise(low, middle):
        return DIFFERS, found
    return AGREES if late > noise(middle, high) else CANNOT, found


def judge_penalty(results: dict) -> tuple[str, str]:
    low, high = (results["all"][label(distance_penalty=penalty)] for penalty in (0.01, 0.05))
    gained, slower = right(high) - right(low), 100 * (1 - times(high) / times(low))
    found = (
        f"From 0.01 to 0.05 accuracy changes by {gained:+.1f} points (noise: {noise(low, high):.1f}), and speed by "
        f"{-slower:+.0f} %."
    )
    if abs(gained) <= noise(low, high):
        return CANNOT, found
    return AGREES if gained > 0 and slower < 10 else DIFFERS, found


def judge_streaming(results: dict) -> tuple[str, str]:
    rows = results["all"]
    thresholds = sorted({row["arguments"].get("entropy_threshold") for row in rows.values()} - {None})
    pairs = [
        [rows[label_of({"decoding": kind, "entropy_threshold": threshold})] for kind in ("streaming", "blockwise")]
        for threshold in thresholds
    ]
    faster = sum(times(streaming) > times(blockwise) for streaming, blockwise in pairs)
    better = sum(right(streaming) > right(blockwise) for streaming, blockwise in pairs)
    streaming, blockwise = pairs[-1]
    found = (
        f"Streaming is the faster one at {faster} of {len(pairs)} thresholds and more often right at {better}; at "
        f"{thresholds[-1]} it has {times(streaming):.1f} times the speed of autoregressive decoding and "
        f"{right(streaming):.1f} % right, blockwise {times(blockwise):.1f} times and {right(blockwise):.1f} %; rows "
        f"are cacheable to {streaming['prefix_cacheability']:.2f} and {blockwise['prefix_cacheability']:.2f}."
    )
    return AGREES if faster == len(pairs) else DIFFERS, found


def judge_pareto(results: dict) -> tuple[str, str]:
    rows = results["all"]
    careful, fast = (rows[label(entropy_threshold=threshold, distance_penalty=0.01)] for threshold in (0.2, 0.9))
    verified = max((row for row in rows.values() if row["arguments"]["decoding"] == "verified"), key=times)
    base = rows[BASELINE]
    found = (
        f"Threshold 0.2 has {right(careful):.1f} % right at {times(careful):.1f} times the speed of autoregressive "
        f"decoding ({right(base):.1f} %), threshold 0.9 {right(fast):.1f} % at {times(fast):.1f} times. Verified "
        f"decoding, which the paper does not have, keeps {right(verified):.1f} % at {times(verified):.1f} times."
    )
    if times(fast) <= times(careful) or right(fast) - right(careful) > noise(careful, fast):
        return DIFFERS, found
    return AGREES if right(careful) - right(fast) > noise(careful, fast) else CANNOT, found


def judge_window(results: dict) -> tuple[str, str]:
    rows = results["all"]

    def of(decoding: str) -> dict[int, dict]:
        return {
            row["arguments"]["window_size"]: row for row in rows.values() if row["arguments"]["decoding"] == decoding
        }

    best = {
        decoding: max(of(decoding).items(), key=lambda item: times(item[1])) for decoding in ("streaming", "verified")
    }
    found = "; ".join(
        f"{decoding} decoding is fastest with {size} slots, {times(row):.1f} times autoregressive"
        for decoding, (size, row) in best.items()
    )
    streaming, base = of("streaming"), right(rows[BASELINE])
    kept = max(size for size, row in streaming.items() if right(row) >= base)
    lost = streaming[min(size for size in streaming if size > kept)]
    return CANNOT, (
        f"{found[0].upper()}{found[1:]}. Up to {kept} slots streaming loses no answers against autoregressive "
        f"decoding ({base:.1f} %), with {lost['arguments']['window_size']} it has {right(lost):.1f} %."
    )


def judge_kinds(results: dict) -> tuple[str, str]:
    streaming = {kind: rows["streaming"]["tokens_per_forward"] for kind, rows in results.items()}
    verified = {kind: rows["verified"]["tokens_per_forward"] for kind, rows in results.items()}
    order = [streaming[kind] for kind in ("counting", "equations", "stories")]
    found = (
        f"Tokens per forward on counting, equations and stories: streaming {order[0]:.1f}, {order[1]:.1f} and "
        f"{order[2]:.1f}, verified {verified['counting']:.1f}, {verified['equations']:.1f} and "
        f"{verified['stories']:.1f}."
    )
    return AGREES if all(more > less for more, less in pairwise(order)) else DIFFERS, found


def rows_of(results: dict, decoding: str) -> dict[str, dict]:
    """Of the questions of both kinds, by model."""
    return {row["model"]: row for row in results["rows"] if (row["decoding"], row["kind"]) == (decoding, "both")}


def points(share: float) -> str:
    return f"{100 * share:.1f}"


def right_of(row: dict) -> str:
    return f"{points(row['accuracy'])} % ({row['model']})"


FLOOR = 0.05  # with fewer right answers than this a comparison of them says nothing


def is_noise(row: dict) -> bool:
    low, high = row["over_reference_interval"]
    return low <= 0 <= high


def judge_block_size(results: dict) -> tuple[str, str]:
    rows, base = rows_of(results, "window of 6"), rows_of(results, "token by token")["base"]
    *smaller, reference = rows.values()
    found = (
        f"Of answers decoded in a window of 6, one token per forward, {', '.join(map(right_of, smaller))} and "
        f"{right_of(reference)} are right; of those of the base, token by token, {points(base['accuracy'])} %."
    )
    if max(row["accuracy"] for row in rows.values()) < FLOOR:
        return CANNOT, found
    return AGREES if all(map(is_noise, smaller)) else DIFFERS, found


def judge_inside_block(results: dict) -> tuple[str, str]:
    rows = rows_of(results, "window of its blocks")
    causal, bidirectional = rows.values()
    low, high = bidirectional["over_reference_interval"]
    found = (
        f"Decoded in a window of the trained size, one token per forward, {right_of(causal)} and "
        f"{right_of(bidirectional)} of the answers are right, a difference of {100 * low:+.1f} to {100 * high:+.1f} "
        "points."
    )
    if max(causal["accuracy"], bidirectional["accuracy"]) < FLOOR or is_noise(bidirectional):
        return CANNOT, found
    return AGREES if bidirectional["over_reference"] < 0 else DIFFERS, found


SECTIONS = [
    Section(
        "Accuracy and speed against the entropy threshold",
        "threshold",
        "Figure 4a, WeDLM-7B-Instruct on MATH: accuracy is stable up to a threshold of 0.5, then falls sharply; 0.3 "
        "to 0.6 is recommended.",
        judge_threshold,
        {
            DIFFERS: "on a model this small accuracy falls where the paper's is still flat: of what it fills at the "
            "default threshold some is wrong, and later tokens build on it. The steep fall beyond is the "
            "paper's as well.",
        },
    ),
    Section(
        "Accuracy and speed against the distance penalty",
        "penalty",
        "Figure 4b: a penalty of 0.05 instead of 0.01 brings 2.6 points at 3 % less speed.",
        judge_penalty,
        {
            DIFFERS: "it helps more than in the paper, and costs more speed. The errors of this model are slots filled"
            " far ahead of what they follow from, which a penalty makes wait; so do the right ones.",
        },
    ),
    Section(
        "Streaming against blockwise decoding",
        "streaming-blockwise",
        "Figure 4c: streaming is faster at every threshold; at 0.9, 423 against 221 tokens per second.",
        judge_streaming,
        {
            AGREES: "a slot is committed as soon as none before it is open, so that new ones are opened in every "
            "forward. Blockwise decoding is right more often here, perhaps because its window ends and with it "
            "the guesses far ahead.",
        },
    ),
    Section(
        "The front of quality and speed",
        "pareto",
        "Figure 5a, WeDLM-8B-Instruct on GSM8K, penalty 0.01: 92.3 % at 1.97 times the speed of Qwen3-8B in vLLM "
        "(threshold 0.2), and above 79 % at 3.2 times (0.9).",
        judge_pareto,
        {
            AGREES: "speed is bought with accuracy. But verified decoding is on the front without paying for it: "
            "streaming passes it in speed only where it loses answers.",
        },
    ),
    Section(
        "The window",
        "window",
        "Quality was measured with a window of 6; the window is not varied.",
        judge_window,
        {
            CANNOT: "the paper says nothing of it. What is wrong with a large window are slots filled far ahead of "
            "what they follow from.",
        },
    ),
    Section(
        "Tokens per forward by kind of text",
        "kinds",
        "The case study: counting to 200 runs at 1673 tokens per second, a linear equation at 745, an explanation of "
        "quantum physics at 198: the less is left open, the more is filled at once.",
        judge_kinds,
        {
            DIFFERS: "what leaves nothing open is filled fastest and stories slowest, as in the paper; but counting is"
            " behind equations, whose answers repeat what stands in the question, where each number of a "
            "count has to be computed.",
        },
    ),
    Section(
        "Block size in training",
        "block-size",
        "Figure 5b: trained in blocks of 4, 8 and 32 the averages are 71.23, 70.45 and 70.84, so it hardly matters.",
        judge_block_size,
        {
            DIFFERS: "after so short a training the largest blocks have learned least, as their masked tokens stand "
            "farthest from what is known. The paper trained until that no longer mattered; one seed, and "
            "models with few answers right.",
        },
    ),
    Section(
        "Causal or bidirectional inside the block",
        "inside-block",
        "Figure 5c, change from the autoregressive base with causal and with bidirectional attention inside a block: "
        "Qwen3-0.6B -3.91 and -5.02, Qwen2.5-1.5B -0.57 and -0.48, Qwen2.5-7B +3.63 and -0.11.",
        judge_inside_block,
        {
            CANNOT: "after so short a training neither kind of attention answers anything with its largest blocks. Of"
            " the tokens more are right with causal attention, which is the sign of the paper's difference; "
            "it is one seed.",
        },
    ),
]


def file_of(name: str) -> str:
    return f"ablation_{name.replace('-', '_')}.json"


def report_of(name: str) -> dict:
    return json.loads((RESULTS / file_of(name)).read_text(encoding="utf-8"))


def settings(report: dict) -> str:
    versions = report["versions"]
    return (
        f"{report['device']}, {report['threads']} threads, torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commit {report['commit'][:12]}"
    )


def section(described: Section, report: dict) -> str:
    verdict, found = described.judge(report["results"])
    plot = f"evidence/{described.name.replace('-', '_')}.png"
    file = file_of(described.name)
    module = ablations_training if described.name in ablations_training.VARIANTS else ablations
    return f"""\
## {described.title}

**The paper.** {described.paper}

**Here.** {found}

**{verdict}**: {described.why[verdict]}

![{described.title}]({plot})

{module.table(report["results"])}

`{report["command"]}`, in [{file}](../benchmarks/results/{file}): {settings(report)}.
"""


def page() -> str:
    return "\n".join([HEAD, *(section(described, report_of(described.name)) for described in SECTIONS)])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written to {Path(PAGE).relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
