"""Asks the same questions in many decodings, interleaved, and compares their quality and speed."""

from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from wedlm.evaluation.decodings import BASELINE, is_exact
from wedlm.evaluation.work_file import WorkFile, digest_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation import GenerateDecoderOnlyOutput

NUM_RESAMPLES = 10_000


class Question(NamedTuple):
    ids: list[int]
    quality: Callable[[str], float]  # of an answer, from 0 to 1


class Answer(NamedTuple):
    text: str
    quality: float
    tokens: int  # the end token included
    forwards: int
    window_queries: int  # tokens / window_queries is the prefix cacheability
    seconds: float


def write(model: "PreTrainedModel", question: Question, arguments: dict[str, Any]) -> "GenerateDecoderOnlyOutput":
    """Answers the question greedily; this is the call that is timed."""
    import torch  # here, so that `wedlm tune` and `wedlm adapt` refuse wrong files without it

    input_ids = torch.tensor([question.ids], device=model.device)
    return model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **arguments,
        do_sample=False,
        return_dict_in_generate=True,
    )


def answer_of(
    tokenizer: "PreTrainedTokenizerBase", question: Question, output: "GenerateDecoderOnlyOutput", seconds: float
) -> Answer:
    new = output.sequences[0, len(question.ids) :].tolist()
    text = tokenizer.decode(new, skip_special_tokens=True)
    window_queries = round(len(new) / output.prefix_cacheability.item())
    return Answer(text, question.quality(text), len(new), output.forwards.item(), window_queries, seconds)


def sweep(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    questions: list[Question],
    decodings: dict[str, dict[str, Any]],
    max_new_tokens: int,
    work: WorkFile,
) -> dict[str, list[Answer]]:
    """The greedy answers of every decoding to every question, by the label of the decoding.

    The decodings alternate on each question, and another one begins from question to question. A question is kept in
    `work` when all decodings have answered it, so that answers that are compared were timed together.
    """
    from wedlm.evaluation.timing import interleaved

    arguments = {label: {**chosen, "max_new_tokens": max_new_tokens} for label, chosen in decodings.items()}
    num_warm_up = 1  # of the first question that is asked
    answers = {label: [] for label in decodings}
    with tqdm(total=len(questions), unit=" questions", desc=f"{len(decodings)} decodings") as bar:
        for number, question in enumerate(questions):
            key = ("question", number, digest_of([question.ids, arguments]))
            if key not in work:
                calls = {label: partial(write, model, question, chosen) for label, chosen in arguments.items()}
                outputs = interleaved(calls, model.device, 1, num_warm_up, first=number % len(calls))
                made = {each.name: answer_of(tokenizer, question, each.result, each.seconds) for each in outputs}
                work.add(key, made)
                num_warm_up = 0
            for label in decodings:
                answers[label].append(Answer(*work[key][label]))
            bar.update()
    return answers


def summary(answers: list[Answer], baseline: list[Answer], is_exact: bool = False) -> dict:
    """The numbers of one decoding, compared question by question with the baseline.

    With `is_exact` the decoding writes the baseline's text by design; if it did so, the interval of the difference has
    no width.
    """
    quality, base = (np.array([answer.quality for answer in one]) for one in (answers, baseline))
    differences = quality - base
    bounds = [0.0, 0.0] if is_exact and not differences.any() else paired_bounds(quality, base)
    tokens, forwards, window_queries = (
        sum(getattr(answer, name) for answer in answers) for name in ("tokens", "forwards", "window_queries")
    )
    speed, base_speed = (np.array([answer.tokens / answer.seconds for answer in one]) for one in (answers, baseline))
    is_same = [answer.text == other.text for answer, other in zip(answers, baseline, strict=True)]
    return {
        "num_questions": len(answers),
        "quality": float(quality.mean()),
        "quality_over_autoregressive": float(differences.mean()),
        "quality_over_autoregressive_interval": bounds,
        "same_text_as_autoregressive": float(np.mean(is_same)),
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / window_queries,
        "tokens_per_second": median_and_quartiles(speed),
        "times_autoregressive": median_and_quartiles(speed / base_speed),
    }


def summaries(answers: dict[str, list[Answer]], decodings: dict[str, dict[str, Any]]) -> dict[str, dict]:
    """The summary of each decoding with its arguments, by label; the baseline must be one of the decodings."""
    base = answers[BASELINE]
    return {
        label: {"arguments": decodings[label]} | summary(of_label, base, is_exact(decodings[label]))
        for label, of_label in answers.items()
    }


def front(summaries: dict[str, dict]) -> list[str]:
    """The labels of the decodings that no other one beats, the slowest first.

    One decoding beats another if it is at least as good and at least as fast, and not equal in both.
    """
    points = {label: (each["quality"], each["times_autoregressive"]["median"]) for label, each in summaries.items()}

    def is_beaten(point: tuple[float, float]) -> bool:
        return any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points.values())

    kept = [label for label, point in points.items() if not is_beaten(point)]
    return sorted(kept, key=lambda label: points[label][1])


# --- Confidence intervals ---


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """The means of resamples of the examples, drawn with replacement, of shape (NUM_RESAMPLES, ...).

    `values` has the shape (examples, ...). The numbers of one example stay together, so that differences between
    columns are differences of pairs.
    """
    random = np.random.default_rng(seed)
    return np.stack([values[random.integers(len(values), size=len(values))].mean(0) for _ in range(NUM_RESAMPLES)])


def median_and_quartiles(values: np.ndarray) -> dict:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "quartiles": [float(low), float(high)]}


def paired_bounds(quality: np.ndarray, base: np.ndarray, confidence: float = 0.95) -> list[float]:
    """A confidence interval of the difference of two means of qualities, 0 or 1, over pairs, as [low, high].

    It contains the share `confidence` of the resamples. Resamples contain no difference that was not observed, so the
    interval is widened to Newcombe's (his tenth method, by the counts of pairs): if n pairs are all right on both
    sides, it still reaches down to about -3.8 / n.
    """
    tail = (1 - confidence) / 2
    resampled = np.quantile(resampled_means(quality - base), [tail, 1 - tail])
    counted = newcombe(quality, base, NormalDist().inv_cdf(1 - tail))
    return [float(min(resampled[0], counted[0])), float(max(resampled[1], counted[1]))]


def newcombe(quality: np.ndarray, base: np.ndarray, z: float) -> tuple[float, float]:
    """The hybrid score interval of a difference of paired shares, from Wilson's interval of each share."""
    number = len(quality)
    both, neither = (quality * base).sum(), ((1 - quality) * (1 - base)).sum()
    gained, lost = (quality * (1 - base)).sum(), ((1 - quality) * base).sum()
    excess = both * neither - gained * lost
    scale = sqrt((both + gained) * (lost + neither) * (both + lost) * (gained + neither))
    correlation = 0.0 if scale == 0 else (max(excess - number / 2, 0) if excess > 0 else excess) / scale
    below, above = zip(*(wilson_distances(values.mean(), number, z) for values in (quality, base)), strict=True)

    def half(own: float, other: float) -> float:
        return sqrt(max(own**2 - 2 * correlation * own * other + other**2, 0))

    difference = quality.mean() - base.mean()
    return difference - half(below[0], above[1]), difference + half(above[0], below[1])


def wilson_distances(share: float, number: int, z: float) -> tuple[float, float]:
    """The distances from the share to the lower and upper end of Wilson's interval."""
    middle = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2)) / (1 + z**2 / number)
    return share - (middle - half), middle + half - share
