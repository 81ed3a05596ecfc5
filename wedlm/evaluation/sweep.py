"""The same questions in many decodings, one at a time and in turns: quality and speed are of the same texts."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.evaluation.decodings import BASELINE, EXACT
from wedlm.evaluation.resampling import median_and_quartiles, paired_bounds
from wedlm.evaluation.work_file import WorkFile, digest_of


class Question(NamedTuple):
    ids: list[int]
    quality: Callable[[str], float]  # of a text that answers it, from 0 to 1


class Answer(NamedTuple):
    text: str
    quality: float
    tokens: int  # the end token included
    forwards: int
    window_rows: int  # tokens / window_rows is the prefix cacheability
    seconds: float


def answer_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: Question, arguments: dict[str, Any]
) -> Answer:
    input_ids = torch.tensor([question.ids], device=model.device)
    start = time.perf_counter()
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **arguments,
        do_sample=False,
        return_dict_in_generate=True,
    )
    new = output.sequences[0, len(question.ids) :].tolist()  # waits for the device
    seconds = time.perf_counter() - start
    text = tokenizer.decode(new, skip_special_tokens=True)
    window_rows = round(len(new) / output.prefix_cacheability.item())
    return Answer(text, question.quality(text), len(new), output.forwards.item(), window_rows, seconds)


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    decodings: dict[str, dict[str, Any]],
    max_new_tokens: int,
    work: WorkFile,
) -> dict[str, list[Answer]]:
    """What each decoding, greedy, makes of each question; whoever is first changes from question to question.

    A question is kept in `work` when all have answered it: what is compared was always timed together.
    """
    arguments = {label: {**chosen, "max_new_tokens": max_new_tokens} for label, chosen in decodings.items()}
    labels = list(decodings)
    is_warm = False
    answers = {label: [] for label in labels}
    with tqdm(total=len(questions), unit=" questions", desc=f"{len(labels)} decodings") as bar:
        for number, question in enumerate(questions):
            key = ("question", number, digest_of([question.ids, arguments]))
            if key not in work:
                for label in () if is_warm else labels:
                    answer_of(model, tokenizer, question, arguments[label])
                is_warm = True
                first = number % len(labels)
                made = {
                    label: answer_of(model, tokenizer, question, arguments[label])
                    for label in [*labels[first:], *labels[:first]]
                }
                work.add(key, made)
            for label in labels:
                answers[label].append(Answer(*work[key][label]))
            bar.update()
    return answers


def summary(answers: list[Answer], baseline: list[Answer], is_exact: bool = False) -> dict:
    """The numbers of one decoding, in pairs with the baseline, whose text it writes if it `is_exact`."""
    quality, base = (np.array([answer.quality for answer in side]) for side in (answers, baseline))
    differences = quality - base
    bounds = [0.0, 0.0] if is_exact and not differences.any() else paired_bounds(quality, base)
    tokens, forwards, rows = (sum(getattr(answer, name) for answer in answers) for name in Answer._fields[2:5])
    speed, base_speed = (np.array([answer.tokens / answer.seconds for answer in side]) for side in (answers, baseline))
    return {
        "num_questions": len(answers),
        "quality": float(quality.mean()),
        "quality_over_autoregressive": float(differences.mean()),
        "quality_over_autoregressive_interval": bounds,
        "same_text_as_autoregressive": float(
            np.mean([answer.text == other.text for answer, other in zip(answers, baseline, strict=True)])
        ),
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / rows,
        "tokens_per_second": median_and_quartiles(speed),
        "times_autoregressive": median_and_quartiles(speed / base_speed),
    }


def summaries(answers: dict[str, list[Answer]], decodings: dict[str, dict[str, Any]]) -> dict[str, dict]:
    """By label; one of them is the baseline."""
    return {
        label: {"arguments": decodings[label]}
        | summary(of_label, answers[BASELINE], is_exact=decodings[label]["decoding"] in EXACT)
        for label, of_label in answers.items()
    }


def front(rows: dict[str, dict]) -> list[str]:
    """The labels that no other beats in speed without losing quality, or in quality without losing speed."""

    def place(label: str) -> tuple[float, float]:
        return rows[label]["quality"], rows[label]["times_autoregressive"]["median"]

    def is_beaten(label: str) -> bool:
        quality, times = place(label)
        return any(
            other[0] >= quality and other[1] >= times and other != (quality, times) for other in map(place, rows)
        )

    return sorted((label for label in rows if not is_beaten(label)), key=lambda label: place(label)[1])
