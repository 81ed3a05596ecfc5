"""Finds the fastest decoding that is shown to keep quality on a user's own examples."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wedlm.evaluation.decodings import BASELINE, combinations, is_exact
from wedlm.evaluation.sweep import Answer, paired_bounds
from wedlm.generation.parameters import DECODINGS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONFIDENCE = 0.95  # of all settings together


class Example(NamedTuple):
    """A prompt, and an answer where there is one."""

    kind: str  # such as the name of the file
    prompt: str | list[dict]  # a text, or the messages of a chat
    answer: str | None = None
    where: str = ""  # for error messages

    def messages(self) -> list[dict]:
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt


def read_examples(path: Path, option: str = "--data") -> list[Example]:
    """Reads examples from a file with one JSON object per line.

    An object is {"prompt": ..., "answer": ...}, where the prompt is a text or a list of messages, or
    {"messages": [...]} whose last message is the answer. Answers are optional, but all examples have one or none has.
    Errors name the file by the option that it was given with.
    """
    try:
        # splitlines() would also split at U+2028 and its like, which texts in JSON may contain.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {path} cannot be read ({error}); give a file of JSON Lines.") from error
    examples = [read_example(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise ValueError(f"{option} {path} holds no examples; write a line of JSON for each.")
    with_answer = [number for number, example in enumerate(examples, 1) if example.answer is not None]
    if 0 < len(with_answer) < len(examples):
        raise ValueError(
            f"{option} {path}: {len(with_answer)} of {len(examples)} examples have an answer; give one to all or none."
        )
    return examples


def read_example(line: str, number: int, path: Path) -> Example:
    where = f"{path}, line {number}"
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # fails for a lone surrogate, which is not text
    except (json.JSONDecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); correct or remove the line.") from error
    record = record if isinstance(record, dict) else {}
    prompt, answer = record.get("prompt"), record.get("answer")
    if is_chat(record.get("messages")):
        prompt, answer = record["messages"], None
        if prompt[-1]["role"] == "assistant":
            *prompt, last = prompt
            answer = last["content"]
            if not prompt:
                raise ValueError(f"{where}: messages holds an answer and no question; put the question in front.")
    is_prompt = isinstance(prompt, str) and prompt.strip() or is_chat(prompt)
    if not is_prompt or not (answer is None or isinstance(answer, str) and answer.strip()):
        raise ValueError(
            f'{where}: neither {{"prompt": a text or messages, "answer": a text}} nor {{"messages": [...]}}; write it '
            "as one of them."
        )
    return Example(path.stem, prompt, answer, where)


def is_chat(value: Any) -> bool:
    """Whether the value is a non-empty list of messages."""
    return isinstance(value, list) and len(value) > 0 and all(map(is_message, value))


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))


def encoded(
    examples: list[Example], model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int
) -> list[list[int]]:
    """The ids of all prompts; refuses one that leaves no room for an answer."""
    from wedlm.checkpoints.prompt_ids import encode
    from wedlm.generation.model_kind import max_positions_of

    if max_new_tokens >= (most := max_positions_of(model)):
        raise ValueError(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt, since the model reads {most} tokens in "
            "all; give a smaller number."
        )
    all_ids = []
    for example in examples:
        try:
            ids = encode(model, tokenizer, example.prompt)
        except Exception as error:  # MASK in a prompt; and a template refuses a chat by any exception
            raise ValueError(f"{example.where}: {' '.join(str(error).split())}") from error
        if len(ids) + max_new_tokens > most:
            raise ValueError(
                f"{example.where}: the prompt has {len(ids)} tokens, which with --max-new-tokens {max_new_tokens} are "
                f"more than the {most} that the model reads; shorten or remove it, or give a smaller number."
            )
        all_ids.append(ids)
    return all_ids


# --- Measures: whether a text is right ---

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def last_number(text: str) -> float | None:
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def equals(text: str, answer: str) -> bool:
    return text.split() == answer.split()


def contains(text: str, answer: str) -> bool:
    return " ".join(answer.split()).lower() in " ".join(text.split()).lower()


def has_last_number(text: str, answer: str) -> bool:
    return last_number(text) is not None and last_number(text) == last_number(answer)


MEASURES: dict[str, Callable[[str, str], bool]] = {
    "exact": equals,
    "contains": contains,
    "last-number": has_last_number,
}
AGREEMENT = "agreement"  # a text is right if it equals the autoregressive one; needs no answers


def quality_by(measure: str, right: str | None) -> Callable[[str], float]:
    """A function from a text to its quality; agreement is found later, when the autoregressive texts are known."""
    is_right = MEASURES.get(measure)
    return (lambda text: float(is_right(text, right))) if is_right else lambda text: 0.0


def with_agreement(answers: dict[str, list[Answer]]) -> dict[str, list[Answer]]:
    """The answers, with the quality 1 where the text is the autoregressive one."""
    texts = [answer.text for answer in answers[BASELINE]]
    return {
        label: [answer._replace(quality=float(answer.text == text)) for answer, text in zip(each, texts, strict=True)]
        for label, each in answers.items()
    }


def measure_of(name: str | None, examples: list[Example]) -> str:
    """The measure to use: by default "exact", or "agreement" if there are no answers."""
    has_answers = examples[0].answer is not None
    name = name or ("exact" if has_answers else AGREEMENT)
    if name not in (*MEASURES, AGREEMENT):
        raise ValueError(f"--measure {name} is unknown; choose one of {', '.join([*MEASURES, AGREEMENT])}.")
    if name != AGREEMENT and not has_answers:
        raise ValueError(
            f"--measure {name} needs answers, and the examples have none; add answers, or leave out --measure."
        )
    if name == "last-number":
        for example in examples:
            if last_number(example.answer) is None:
                raise ValueError(
                    f"--measure last-number: the answer in {example.where} holds no number; correct the line."
                )
    return name


# --- Settings: which are tried, and which one is chosen ---


STREAMING = {
    "window_size": [8, 16],
    "entropy_threshold": [0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.9],
    "distance_penalty": [0.02],
}


def settings_to_try(decodings: tuple[str, ...] = DECODINGS) -> dict[str, dict[str, Any]]:
    """The settings that are tried on a model which offers these decodings."""
    settings = (
        combinations([BASELINE, "verified"], window_size=[4, 8, 16])
        | combinations(["streaming"], **STREAMING)
        | combinations(["streaming"], window_size=[16], entropy_threshold=[0.1, 0.2, 0.4], distance_penalty=[0.05])
    )
    return {label: setting for label, setting in settings.items() if setting["decoding"] in decodings}


def read_share(text: str) -> float:
    """Reads a share: read_share("1%") == read_share("0.01") == 0.01."""
    try:
        share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"--max-quality-loss {text} is not a share of the examples; give a share such as 1% or 0.01.")
    return share


def uncertain(decodings: dict[str, dict[str, Any]]) -> list[str]:
    """The labels of the settings that may write another text than the baseline."""
    return [label for label, arguments in decodings.items() if not is_exact(arguments)]


def lost_bounds(quality: np.ndarray, base: np.ndarray, num_uncertain: int) -> tuple[float, float]:
    """A lower and an upper bound of the share of answers that a setting loses, from the qualities of both sides.

    The bounds of all uncertain settings on one side hold together with 95 % confidence. The fastest setting is chosen
    by the examples that judge it, so each single bound has a higher confidence.
    """
    share = 1 - (1 - CONFIDENCE) / max(1, num_uncertain)
    low, high = paired_bounds(quality, base, 2 * share - 1)  # each end is used by itself
    return -high, -low


def qualities(answers: list[Answer]) -> np.ndarray:
    return np.array([answer.quality for answer in answers])


def most_lost(answers: dict[str, list[Answer]], decodings: dict[str, dict[str, Any]]) -> dict[str, float]:
    """An upper bound of the share of answers that each setting loses against the baseline, by label."""
    labels, base = uncertain(decodings), qualities(answers[BASELINE])
    bounds = {}
    for label, of_label in answers.items():
        quality = qualities(of_label)
        is_same = label not in labels and (quality == base).all()
        bounds[label] = 0.0 if is_same else max(0.0, lost_bounds(quality, base, len(labels))[1])
    return bounds


def would_show_a_loss(answers: list[Answer], loss: float, num_uncertain: int) -> bool:
    """Whether the examples would show that a setting that is always wrong loses more than the share `loss`.

    If not, there are too few examples, or the baseline is right on too few of them, and they show nothing about any
    setting.
    """
    base = qualities(answers)
    return lost_bounds(np.zeros_like(base), base, num_uncertain)[0] > loss


def decide(answers: dict[str, list[Answer]], results: dict[str, dict], loss: float) -> tuple[str | None, str]:
    """The fastest setting that is shown to lose at most the share `loss`, or None; and the reason.

    Nothing is chosen if the examples show nothing about any setting, or are too few to judge those that are faster.
    """
    base = answers[BASELINE]
    number = len(base)
    num_uncertain = len(uncertain({label: result["arguments"] for label, result in results.items()}))
    needed = examples_needed(loss, num_uncertain)
    fastest = allowed(results, loss)[0]
    share = f"{100 * loss:g} % of the answers"
    if num_uncertain and not would_show_a_loss(base, loss, num_uncertain):
        return None, (
            f"autoregressive decoding answers {int(qualities(base).sum())} of {number} examples rightly, too few to "
            f"show that a setting which is always wrong loses more than {share}; give more examples, or another "
            "--measure."
        )
    if fastest == BASELINE and needed is not None and number < needed:
        return None, (
            f"verified decoding is no faster, and {number} examples cannot show that streaming loses at most {share}; "
            f"give at least {needed}, or a larger --max-quality-loss."
        )
    reason = (
        f"the fastest of those that lose at most {share}, shown with 95 % confidence for all {len(results)} settings "
        "together."
    )
    if is_exact(results[fastest]["arguments"]) and (needed is None or number < needed):
        more = "no number of examples can" if needed is None else f"at least {needed} of them would be needed"
        reason += f"\n{number} examples cannot show that streaming loses so little; {more}."
    return fastest, reason


def examples_needed(loss: float, num_uncertain: int) -> int | None:
    """How many examples, all right and none lost, show a loss of at most `loss`; None if no number does."""
    if not num_uncertain:
        return 0
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / num_uncertain)
    return math.ceil(z**2 * (1 - loss) / loss) if loss > 0 else None


def allowed(summaries: dict[str, dict], loss: float) -> list[str]:
    """The labels of the settings that are shown to lose at most `loss`, fastest first."""
    labels = [label for label, summary in summaries.items() if summary["most_lost"] <= loss]
    return sorted(labels, key=lambda label: -summaries[label]["times_autoregressive"]["median"])


def verdict(summary: dict) -> str:
    """Says how a setting's quality compares with the baseline's; an interval that contains zero is noise."""
    if summary["arguments"]["decoding"] == BASELINE:
        return "the measure"
    low, high = summary["quality_over_autoregressive_interval"]
    if low == high == 0 and is_exact(summary["arguments"]):
        return "the same"
    return "worse" if high < 0 else "better" if low > 0 else "within noise"
