"""docs/EVIDENCE.md, written from the files that the ablations wrote.

    python benchmarks/evidence.py

Each section has the paper's claim, what was measured here, and what that says about the claim. Whether it agrees is
computed from the numbers, and so is which of the written reasons holds, so that none outlives its numbers.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import ablations
import ablations_training

from wedlm.evaluation.decodings import BASELINE, label_of
from wedlm.evaluation.provenance import REPOSITORY, commit_text

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


class Finding(NamedTuple):
    verdict: str
    outcome: str  # in a word or two, by which a section has its reason
    numbers: str  # in a sentence


class Section(NamedTuple):
    title: str
    name: str  # of the figure, and of its files
    paper: str
    judge: Callable[[dict], Finding]  # of the results
    why: dict[str, str]  # by outcome


NO_REASON = "the numbers say so, and why is not known."
NOISE, FLOOR = "within noise", "at the floor"


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


def judge_threshold(results: dict) -> Finding:
    rows = {row["arguments"]["entropy_threshold"]: row for row in results["all"].values() if len(row["arguments"]) > 1}
    low, middle, high = rows[min(rows)], rows[0.5], rows[max(rows)]
    early, late = right(low) - right(middle), right(middle) - right(high)
    found = (
        f"From threshold {min(rows)} to 0.5 accuracy falls by {early:.1f} points, from there to {max(rows)} by "
        f"{late:.1f}; the speed goes from {times(low):.1f} to {times(middle):.1f} and {times(high):.1f} times that of "
        f"autoregressive decoding, which has {right(results['all'][BASELINE]):.1f} % right."
    )
    if early > noise(low, middle):
        return Finding(DIFFERS, "falls early", found)
    return Finding(AGREES, "falls late", found) if late > noise(middle, high) else Finding(CANNOT, NOISE, found)


def judge_penalty(results: dict) -> Finding:
    low, high = (results["all"][label(distance_penalty=penalty)] for penalty in (0.01, 0.05))
    gained, slower = right(high) - right(low), 100 * (1 - times(high) / times(low))
    found = (
        f"From 0.01 to 0.05 accuracy changes by {gained:+.1f} points (noise: {noise(low, high):.1f}), and speed by "
        f"{-slower:+.0f} %."
    )
    if abs(gained) <= noise(low, high):
        return Finding(CANNOT, NOISE, found)
    if gained < 0:
        return Finding(DIFFERS, "worse", found)
    return Finding(DIFFERS, "better and slower", found) if slower > 10 else Finding(AGREES, "better", found)


def judge_streaming(results: dict) -> Finding:
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
    if faster < len(pairs):
        return Finding(DIFFERS, "not always faster", found)
    return Finding(AGREES, "faster" if 2 * better > len(pairs) else "faster and less right", found)


def judge_pareto(results: dict) -> Finding:
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
        return Finding(DIFFERS, "speed costs nothing", found)
    if right(careful) - right(fast) <= noise(careful, fast):
        return Finding(CANNOT, NOISE, found)
    faster = [row for row in rows.values() if times(row) > times(verified)]
    is_in_front = right(verified) >= right(base) and all(right(row) < right(verified) for row in faster)
    return Finding(AGREES, "verified in front" if is_in_front else "speed costs answers", found)


def judge_window(results: dict) -> Finding:
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
    lost = [size for size in sorted(streaming) if right(streaming[size]) < base]
    sizes = ", ".join(f"{size} slots ({right(streaming[size]):.1f} %)" for size in lost) or "none of the sizes"
    found = (
        f"{found[0].upper()}{found[1:]}. Against autoregressive decoding, which has {base:.1f} % right, streaming "
        f"loses answers with {sizes}."
    )
    return Finding(CANNOT, "loses with many" if lost[-1:] == [max(streaming)] else "keeps", found)


def judge_kinds(results: dict) -> Finding:
    streaming = {kind: rows["streaming"]["tokens_per_forward"] for kind, rows in results.items()}
    verified = {kind: rows["verified"]["tokens_per_forward"] for kind, rows in results.items()}
    order = [streaming[kind] for kind in ("counting", "equations", "stories")]
    found = (
        f"Tokens per forward on counting, equations and stories: streaming {order[0]:.1f}, {order[1]:.1f} and "
        f"{order[2]:.1f}, verified {verified['counting']:.1f}, {verified['equations']:.1f} and "
        f"{verified['stories']:.1f}."
    )
    if all(more > less for more, less in pairwise(order)):
        return Finding(AGREES, "the paper's order", found)
    is_behind = order[1] > order[0] > order[2]
    return Finding(DIFFERS, "counting behind equations" if is_behind else "another order", found)


def rows_of(results: dict, decoding: str) -> dict[str, dict]:
    """Of the questions of both kinds, by model."""
    return {row["model"]: row for row in results["rows"] if (row["decoding"], row["kind"]) == (decoding, "both")}


def points(share: float) -> str:
    return f"{100 * share:.1f}"


def right_of(row: dict) -> str:
    return f"{points(row['accuracy'])} % ({row['model']})"


LEAST = 0.05  # with fewer right answers than this a comparison of them says nothing


def is_noise(row: dict) -> bool:
    low, high = row["over_reference_interval"]
    return low <= 0 <= high


def judge_block_size(results: dict) -> Finding:
    rows, base = rows_of(results, "window of 6"), rows_of(results, "token by token")["base"]
    *smaller, reference = rows.values()
    found = (
        f"Of answers decoded in a window of 6, one token per forward, {', '.join(map(right_of, smaller))} and "
        f"{right_of(reference)} are right; of those of the base, token by token, {points(base['accuracy'])} %."
    )
    if max(row["accuracy"] for row in rows.values()) < LEAST:
        return Finding(CANNOT, FLOOR, found)
    if all(map(is_noise, smaller)):
        return Finding(AGREES, NOISE, found)
    are_better = all(row["over_reference"] > 0 for row in smaller if not is_noise(row))
    return Finding(DIFFERS, "smaller blocks are better" if are_better else "large blocks are better", found)


def judge_inside_block(results: dict) -> Finding:
    rows = rows_of(results, "window of its blocks")
    causal, bidirectional = rows.values()
    low, high = bidirectional["over_reference_interval"]
    found = (
        f"Decoded in a window of the trained size, one token per forward, {right_of(causal)} and "
        f"{right_of(bidirectional)} of the answers are right, a difference of {100 * low:+.1f} to {100 * high:+.1f} "
        "points."
    )
    if max(causal["accuracy"], bidirectional["accuracy"]) < LEAST:
        return Finding(CANNOT, FLOOR, found)
    if is_noise(bidirectional):
        return Finding(CANNOT, NOISE, found)
    if bidirectional["over_reference"] > 0:
        return Finding(DIFFERS, "bidirectional is better", found)
    return Finding(AGREES, "causal is better", found)


SECTIONS = [
    Section(
        "Accuracy and speed against the entropy threshold",
        "threshold",
        "Figure 4a, WeDLM-7B-Instruct on MATH: accuracy is stable up to a threshold of 0.5, then falls sharply; 0.3 "
        "to 0.6 is recommended.",
        judge_threshold,
        {
            "falls early": "on a model this small accuracy falls where the paper's is still flat: of what it fills at "
            "the default threshold some is wrong, and later tokens build on it. The steep fall beyond is the paper's "
            "as well.",
        },
    ),
    Section(
        "Accuracy and speed against the distance penalty",
        "penalty",
        "Figure 4b: a penalty of 0.05 instead of 0.01 brings 2.6 points at 3 % less speed.",
        judge_penalty,
        {
            "better and slower": "it helps more than in the paper, and costs more speed. The errors of this model are "
            "slots filled far ahead of what they follow from, which a penalty makes wait; so do the right ones.",
        },
    ),
    Section(
        "Streaming against blockwise decoding",
        "streaming-blockwise",
        "Figure 4c: streaming is faster at every threshold; at 0.9, 423 against 221 tokens per second.",
        judge_streaming,
        {
            "faster and less right": "a slot is committed as soon as none before it is open, so that new ones are "
            "opened in every forward. Blockwise decoding is right more often here, perhaps because its window ends "
            "and with it the guesses far ahead.",
        },
    ),
    Section(
        "The front of quality and speed",
        "pareto",
        "Figure 5a, WeDLM-8B-Instruct on GSM8K, penalty 0.01: 92.3 % at 1.97 times the speed of Qwen3-8B in vLLM "
        "(threshold 0.2), and above 79 % at 3.2 times (0.9).",
        judge_pareto,
        {
            "verified in front": "speed is bought with accuracy. But verified decoding is on the front without paying "
            "for it: streaming passes it in speed only where it loses answers.",
        },
    ),
    Section(
        "The window",
        "window",
        "Quality was measured with a window of 6; the window is not varied.",
        judge_window,
        {
            "loses with many": "the paper says nothing of it. What is wrong with a large window are slots filled far "
            "ahead of what they follow from.",
        },
    ),
    Section(
        "Tokens per forward by kind of text",
        "kinds",
        "The case study: counting to 200 runs at 1673 tokens per second, a linear equation at 745, an explanation of "
        "quantum physics at 198: the less is left open, the more is filled at once.",
        judge_kinds,
        {
            "counting behind equations": "what leaves nothing open is filled fastest and stories slowest, as in the "
            "paper; but counting is behind equations, whose answers repeat what stands in the question, where each "
            "number of a count has to be computed.",
        },
    ),
    Section(
        "Block size in training",
        "block-size",
        "Figure 5b: trained in blocks of 4, 8 and 32 the averages are 71.23, 70.45 and 70.84, so it hardly matters.",
        judge_block_size,
        {
            "smaller blocks are better": "after so short a training the largest blocks have learned least, as their "
            "masked tokens stand farthest from what is known. The paper trained until that no longer mattered. It is "
            "one seed, and equations are beyond models of this size.",
        },
    ),
    Section(
        "Causal or bidirectional inside the block",
        "inside-block",
        "Figure 5c, change from the autoregressive base with causal and with bidirectional attention inside a block: "
        "Qwen3-0.6B -3.91 and -5.02, Qwen2.5-1.5B -0.57 and -0.48, Qwen2.5-7B +3.63 and -0.11.",
        judge_inside_block,
        {
            NOISE: "what separates the two is less than so few questions and one seed of training can tell; in the "
            "paper it is a few points as well.",
        },
    ),
]


def file_of(name: str) -> str:
    return f"ablation_{name.replace('-', '_')}.json"


def report_of(name: str) -> dict:
    return json.loads((RESULTS / file_of(name)).read_text(encoding="utf-8"))


def settings(report: dict) -> str:
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

`{report["command"]}`, in [{file}](../benchmarks/results/{file}): {settings(report)}.
"""


def page() -> str:
    return "\n".join([HEAD, *(section(described, report_of(described.name)) for described in SECTIONS)])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written to {Path(PAGE).relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
