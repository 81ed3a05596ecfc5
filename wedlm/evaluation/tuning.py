"""Which way to decode suits somebody's own examples: the fastest that is shown to lose no more than they allow."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from wedlm.evaluation.decodings import BASELINE, EXACT, combinations
from wedlm.evaluation.resampling import paired_bounds
from wedlm.evaluation.sweep import Answer

CONFIDENCE = 0.95


class TuningError(ValueError):
    """What cannot be tuned: one sentence with the remedy, to be shown as it is."""


class Example(NamedTuple):
    """What is asked, a text or the messages of a chat, and the right answer where there is one."""

    prompt: str | list[dict]
    answer: str | None
    line: int


def read_examples(path: Path) -> list[Example]:
    """A line of JSON each: {"prompt": ..., "answer": ...}, or {"messages": [...]} with the answer last.

    `prompt` is a text or a list of messages; without answers a text is compared with the autoregressive one.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"--data {path} cannot be read ({error}); give a file of JSON Lines.") from error
    examples = [read_example(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise TuningError(f"--data {path} holds no examples; write a line of JSON for each.")
    with_answer = [number for number, example in enumerate(examples, 1) if example.answer is not None]
    if 0 < len(with_answer) < len(examples):
        raise TuningError(
            f"--data {path}: {len(with_answer)} of {len(examples)} examples have an answer; give one to all or none."
        )
    return examples


def read_example(line: str, number: int, path: Path) -> Example:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # half a pair of surrogates is no text
    except (json.JSONDecodeError, UnicodeEncodeError, RecursionError) as error:
        raise TuningError(f"{where}: no JSON ({error}); correct the line, or take it out.") from error
    row = row if isinstance(row, dict) else {}
    prompt, answer = row.get("prompt"), row.get("answer")
    if is_chat(row.get("messages")):
        prompt, answer = row["messages"], None
        if prompt[-1]["role"] == "assistant":
            *prompt, last = prompt
            answer = last["content"]
            if not prompt:
                raise TuningError(
                    f"{where}: messages holds an answer and nothing to answer; put the question in front."
                )
    is_prompt = isinstance(prompt, str) and prompt.strip() or is_chat(prompt)
    if not is_prompt or not (answer is None or isinstance(answer, str) and answer.strip()):
        raise TuningError(
            f'{where}: neither {{"prompt": a text or messages, "answer": a text}} nor {{"messages": [...]}}; write it '
            "as one of them."
        )
    return Example(prompt, answer, number)


def is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in value
        )
    )


# --- Quality: how right a text is, from 0 to 1 ---

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def last_number(text: str) -> float | None:
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def is_same(text: str, answer: str) -> bool:
    return text.split() == answer.split()


def holds(text: str, answer: str) -> bool:
    return " ".join(answer.split()).lower() in " ".join(text.split()).lower()


def has_last_number(text: str, answer: str) -> bool:
    return last_number(text) is not None and last_number(text) == last_number(answer)


MEASURES: dict[str, Callable[[str, str], bool]] = {
    "exact": is_same,
    "contains": holds,
    "last-number": has_last_number,
}
AGREEMENT = "agreement"  # with the autoregressive text, where there are no answers


def measure_of(name: str | None, examples: list[Example]) -> str:
    has_answers = examples[0].answer is not None
    name = name or ("exact" if has_answers else AGREEMENT)
    if name not in (*MEASURES, AGREEMENT):
        raise TuningError(f"--measure {name} is unknown; choose one of {', '.join([*MEASURES, AGREEMENT])}.")
    if name != AGREEMENT and not has_answers:
        raise TuningError(f"--measure {name} needs answers, and the examples have none; add them, or leave it out.")
    if name == "last-number":
        for example in examples:
            if last_number(example.answer) is None:
                raise TuningError(
                    f"--measure last-number: the answer in line {example.line} holds no number; correct it."
                )
    return name


# --- What is tried, and which of it is taken ---


def settings_to_try() -> dict[str, dict[str, Any]]:
    return combinations(
        [BASELINE, "verified", "streaming"],
        window_size=[8, 16],
        entropy_threshold=[0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.9],
        distance_penalty=[0.02],
    ) | combinations(["streaming"], [16], [0.1, 0.2, 0.4], [0.05])


def read_share(text: str) -> float:
    """read_share("1%") == read_share("0.01") == 0.01"""
    try:
        share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise TuningError(f"--max-quality-loss {text} is no share of the examples; give one such as 1% or 0.01.")
    return share


def most_lost(answers: dict[str, list[Answer]], decodings: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many of the answers each setting loses at most, by label: with 95 % confidence that all of these hold.

    The fastest of many settings is chosen on the examples it is judged on, so each bound is held to more than that.
    """
    uncertain = [label for label, arguments in decodings.items() if arguments["decoding"] not in EXACT]
    share = 1 - (1 - CONFIDENCE) / max(1, len(uncertain))
    base = np.array([answer.quality for answer in answers[BASELINE]])
    bounds = {}
    for label, of_label in answers.items():
        quality = np.array([answer.quality for answer in of_label])
        is_exact = label not in uncertain and (quality == base).all()
        # One-sided: what is gained at most is nobody's question.
        bounds[label] = 0.0 if is_exact else max(0.0, -paired_bounds(quality, base, 2 * share - 1)[0])
    return bounds


def examples_needed(loss: float, num_uncertain: int) -> int | None:
    """With so many, all right, none of which is lost, that loss is shown; None if no number of them can."""
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / num_uncertain)
    return math.ceil(z**2 * (1 - loss) / loss) if loss > 0 else None


def allowed(rows: dict[str, dict], loss: float) -> list[str]:
    """The labels that are shown to lose no more, fastest first."""
    labels = [label for label, row in rows.items() if row["most_lost"] <= loss]
    return sorted(labels, key=lambda label: -rows[label]["times_autoregressive"]["median"])


def verdict(row: dict) -> str:
    """What the examples show about a setting's quality."""
    if row["arguments"]["decoding"] == BASELINE:
        return "the measure"
    low, high = row["quality_over_autoregressive_interval"]
    if low == high == 0 and row["arguments"]["decoding"] in EXACT:
        return "the same"
    return "worse" if high < 0 else "better" if low > 0 else "within noise"
