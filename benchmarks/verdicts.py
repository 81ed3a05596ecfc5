"""Judges the paper's claims by the results of the ablations; the verdicts stand in docs/EVIDENCE.md."""

from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from wedlm.evaluation.decodings import BASELINE, label_of

AGREES, DIFFERS, CANNOT = "Agrees", "Differs", "Cannot be judged"
NOISE, FLOOR = "within noise", "at the floor"
LEAST_ACCURACY = 0.05  # below it a comparison of right answers says nothing


class Finding(NamedTuple):
    verdict: str
    outcome: str  # in a few words, by which a section has its reason
    numbers: str  # in sentences


# --- Decoding ---


def label(**arguments) -> str:
    return label_of({"decoding": "streaming", **arguments})


def right(summary: dict) -> float:
    return 100 * summary["quality"]


def times(summary: dict) -> float:
    return summary["times_autoregressive"]["median"]


def noise(one: dict, other: dict) -> float:
    """
    Half the width of the 95 % interval of a difference between two settings, in points. It is an upper bound, because
    the settings answer the same questions and the formula takes the answers as independent.
    """
    shares = ((summary["quality"], summary["num_questions"]) for summary in (one, other))
    return 196 * sqrt(sum(share * (1 - share) / number for share, number in shares))


def judge_threshold(results: dict) -> Finding:
    of = {
        summary["arguments"]["entropy_threshold"]: summary
        for summary in results["all"].values()
        if len(summary["arguments"]) > 1
    }
    low, middle, high = of[min(of)], of[0.5], of[max(of)]
    early, late = right(low) - right(middle), right(middle) - right(high)
    found = (
        f"From threshold {min(of)} to 0.5 accuracy falls by {early:.1f} points, and from 0.5 to {max(of)} by "
        f"{late:.1f}. The speed is {times(low):.1f}, {times(middle):.1f} and {times(high):.1f} times that of "
        f"autoregressive decoding, which has {right(results['all'][BASELINE]):.1f} % right."
    )
    falls_late = late > noise(middle, high)
    if early > noise(low, middle):
        return Finding(DIFFERS, "falls everywhere" if falls_late else "falls early", found)
    return Finding(AGREES, "falls late", found) if falls_late else Finding(CANNOT, NOISE, found)


def judge_penalty(results: dict) -> Finding:
    low, high = (results["all"][label(distance_penalty=penalty)] for penalty in (0.01, 0.05))
    gained, slower = right(high) - right(low), 100 * (1 - times(high) / times(low))
    found = (
        f"From penalty 0.01 to 0.05 accuracy changes by {gained:+.1f} points (up to {noise(low, high):.1f} would be "
        f"noise), and speed by {-slower:+.0f} %."
    )
    if abs(gained) <= noise(low, high):
        return Finding(CANNOT, NOISE, found)
    if gained < 0:
        return Finding(DIFFERS, "worse", found)
    return Finding(DIFFERS, "better and slower", found) if slower > 10 else Finding(AGREES, "better", found)


def judge_streaming(results: dict) -> Finding:
    of = results["all"]
    thresholds = sorted({summary["arguments"].get("entropy_threshold") for summary in of.values()} - {None})
    pairs = [
        [of[label_of({"decoding": kind, "entropy_threshold": threshold})] for kind in ("streaming", "blockwise")]
        for threshold in thresholds
    ]
    faster = sum(times(streaming) > times(blockwise) for streaming, blockwise in pairs)
    better, worse = (
        sum(
            sign * (right(streaming) - right(blockwise)) > noise(streaming, blockwise)
            for streaming, blockwise in pairs
        )
        for sign in (1, -1)
    )
    streaming, blockwise = pairs[-1]
    found = (
        f"Streaming is faster at {faster} of {len(pairs)} thresholds. Beyond noise it is right more often at {better} "
        f"of them and less often at {worse}. At {thresholds[-1]} it has {right(streaming):.1f} % right at "
        f"{times(streaming):.1f} times the speed of autoregressive decoding, and blockwise decoding has "
        f"{right(blockwise):.1f} % at {times(blockwise):.1f} times. The prefix cacheability is "
        f"{streaming['prefix_cacheability']:.2f} for streaming and "
        f"{blockwise['prefix_cacheability']:.2f} for blockwise decoding."
    )
    if faster < len(pairs):
        return Finding(DIFFERS, "not always faster", found)
    return Finding(AGREES, "faster and less right" if 2 * worse > len(pairs) else "faster", found)


def judge_pareto(results: dict) -> Finding:
    of = results["all"]
    careful, fast = (of[label(entropy_threshold=threshold, distance_penalty=0.01)] for threshold in (0.2, 0.9))
    verified = max((summary for summary in of.values() if summary["arguments"]["decoding"] == "verified"), key=times)
    base = of[BASELINE]
    found = (
        f"Threshold 0.2 has {right(careful):.1f} % right at {times(careful):.1f} times the speed of autoregressive "
        f"decoding ({right(base):.1f} %), and threshold 0.9 has {right(fast):.1f} % at {times(fast):.1f} times. "
        f"Verified decoding, which is not in the paper, has {right(verified):.1f} % at {times(verified):.1f} times."
    )
    if times(fast) <= times(careful) or right(fast) - right(careful) > noise(careful, fast):
        return Finding(DIFFERS, "speed costs nothing", found)
    if right(careful) - right(fast) <= noise(careful, fast):
        return Finding(CANNOT, NOISE, found)
    faster = [summary for summary in of.values() if times(summary) > times(verified)]
    is_in_front = right(verified) >= right(base) and all(right(summary) < right(verified) for summary in faster)
    return Finding(AGREES, "verified in front" if is_in_front else "speed costs answers", found)


def by_window(results: dict, decoding: str) -> dict[int, dict]:
    return {
        summary["arguments"]["window_size"]: summary
        for summary in results["all"].values()
        if summary["arguments"]["decoding"] == decoding
    }


def judge_window(results: dict) -> Finding:
    streaming, verified = (by_window(results, decoding) for decoding in ("streaming", "verified"))
    (size, best), (verified_size, verified_best) = (
        max(of.items(), key=lambda item: times(item[1])) for of in (streaming, verified)
    )
    baseline, widest = results["all"][BASELINE], streaming[max(streaming)]
    base = right(baseline)
    lost = [size for size in sorted(streaming) if right(streaming[size]) < base]
    sizes = " and with ".join(f"{size} slots ({right(streaming[size]):.1f} %)" for size in lost) or "none of the sizes"
    found = (
        f"Streaming is fastest with {size} slots, at {times(best):.1f} times the speed of autoregressive decoding. "
        f"Verified decoding is fastest with {verified_size} slots, at {times(verified_best):.1f} times. "
        f"Autoregressive decoding has {base:.1f} % right, and streaming has fewer right with {sizes}."
    )
    loses = base - right(widest) > noise(widest, baseline)
    return Finding(CANNOT, "loses with many" if loses else "keeps", found)


def judge_kinds(results: dict) -> Finding:
    kinds = ("counting", "equations", "stories")
    streaming, verified = (
        [results[kind][decoding]["tokens_per_forward"] for kind in kinds] for decoding in ("streaming", "verified")
    )
    counting, equations, stories = streaming
    found = (
        f"Streaming fills {counting:.1f} tokens per forward on counting, {equations:.1f} on equations and "
        f"{stories:.1f} on stories. Verified decoding fills {verified[0]:.1f}, {verified[1]:.1f} and "
        f"{verified[2]:.1f}."
    )
    if all(more > less for more, less in pairwise(streaming)):
        return Finding(AGREES, "the paper's order", found)
    is_behind = equations > counting > stories
    return Finding(DIFFERS, "counting behind equations" if is_behind else "another order", found)


# --- Training ---


def by_model(results: dict, decoding: str) -> dict[str, dict]:
    """The numbers of all models in one decoding, on the questions of both kinds together."""
    return {
        numbers["model"]: numbers
        for numbers in results["rows"]
        if (numbers["decoding"], numbers["kind"]) == (decoding, "both")
    }


def percent(numbers: dict) -> str:
    return f"{100 * numbers['accuracy']:.1f} %"


def of_model(numbers: dict) -> str:
    return f"{percent(numbers)} ({numbers['model']})"


def is_noise(numbers: dict) -> bool:
    low, high = numbers["over_reference_interval"]
    return low <= 0 <= high


def judge_block_size(results: dict) -> Finding:
    of, base = by_model(results, "window of 6"), by_model(results, "token by token")["base"]
    *smaller, reference = of.values()
    found = (
        f"In a window of 6 with one token per forward, {', '.join(map(of_model, smaller))} and "
        f"{of_model(reference)} of the answers are right. The base, decoded token by token, has {percent(base)} "
        f"right."
    )
    if max(numbers["accuracy"] for numbers in of.values()) < LEAST_ACCURACY:
        return Finding(CANNOT, FLOOR, found)
    if all(map(is_noise, smaller)):
        return Finding(AGREES, NOISE, found)
    are_better = all(numbers["over_reference"] > 0 for numbers in smaller if not is_noise(numbers))
    return Finding(DIFFERS, "smaller blocks are better" if are_better else "large blocks are better", found)


def judge_inside_block(results: dict) -> Finding:
    causal, bidirectional = by_model(results, "window of its blocks").values()
    low, high = (100 * bound for bound in bidirectional["over_reference_interval"])
    found = (
        f"In a window of the trained size with one token per forward, {of_model(causal)} and "
        f"{of_model(bidirectional)} of the answers are right. The 95 % interval of the difference goes from "
        f"{low:+.1f} to {high:+.1f} points."
    )
    if max(causal["accuracy"], bidirectional["accuracy"]) < LEAST_ACCURACY:
        return Finding(CANNOT, FLOOR, found)
    if is_noise(bidirectional):
        return Finding(CANNOT, NOISE, found)
    if bidirectional["over_reference"] > 0:
        return Finding(DIFFERS, "bidirectional is better", found)
    return Finding(AGREES, "causal is better", found)
