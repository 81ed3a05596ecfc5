"""Asks the same questions in many decodings, one at a time and in turns, and compares quality and speed."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.evaluation.decodings import BASELINE, is_exact
from wedlm.evaluation.resampling import median_and_quartiles, paired_bounds
from wedlm.evaluation.turns import take_turns
from wedlm.evaluation.work_file import WorkFile, digest_of


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


def write(model: PreTrainedModel, question: Question, arguments: dict[str, Any]) -> GenerateDecoderOnlyOutput:
    """Answers the question greedily; this is the call that is timed."""
    input_ids = torch.tensor([question.ids], device=model.device)
    return model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **arguments,
        do_sample=False,
        return_dict_in_generate=True,
    )


def answer_of(
    tokenizer: PreTrainedTokenizerBase, question: Question, output: GenerateDecoderOnlyOutput, seconds: float
) -> Answer:
    new = output.sequences[0, len(question.ids) :].tolist()
    text = tokenizer.decode(new, skip_special_tokens=True)
    window_queries = round(len(new) / output.prefix_cacheability.item())
    return Answer(text, question.quality(text), len(new), output.forwards.item(), window_queries, seconds)


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    decodings: dict[str, dict[str, Any]],
    max_new_tokens: int,
    work: WorkFile,
) -> dict[str, list[Answer]]:
    """
    The greedy answers of every decoding to every question, by the label of the decoding. The decodings take turns on
    each question, and another decoding begins from question to question.

    Args:
        model (`PreTrainedModel`):
            The model that answers.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, which decodes the answers.
        questions (`list[Question]`):
            The questions, each with a function that judges an answer.
        decodings (`dict[str, dict]`):
            Arguments of `generate()` by label.
        max_new_tokens (`int`):
            Length limit of an answer.
        work (`WorkFile`):
            Where answers are kept, so that a run that was stopped goes on. A question is kept when all decodings have
            answered it, so that answers that are compared were timed together.
    """
    arguments = {label: {**chosen, "max_new_tokens": max_new_tokens} for label, chosen in decodings.items()}
    num_warm_up = 1  # of the first question that is asked
    answers = {label: [] for label in decodings}
    with tqdm(total=len(questions), unit=" questions", desc=f"{len(decodings)} decodings") as bar:
        for number, question in enumerate(questions):
            key = ("question", number, digest_of([question.ids, arguments]))
            if key not in work:
                calls = {label: partial(write, model, question, chosen) for label, chosen in arguments.items()}
                turns = take_turns(calls, model.device, 1, num_warm_up, first=number % len(calls))
                work.add(key, {turn.name: answer_of(tokenizer, question, turn.result, turn.seconds) for turn in turns})
                num_warm_up = 0
            for label in decodings:
                answers[label].append(Answer(*work[key][label]))
            bar.update()
    return answers


def summary(answers: list[Answer], baseline: list[Answer], is_exact: bool = False) -> dict:
    """The numbers of one decoding, compared question by question with the baseline.

    Args:
        answers (`list[Answer]`): The answers of the decoding.
        baseline (`list[Answer]`): The baseline's answers to the same questions.
        is_exact (`bool`, *optional*, defaults to `False`):
            Whether the decoding writes the baseline's text by design. If it did so, the interval of the difference has
            no width.
    """
    quality, base = (np.array([answer.quality for answer in one]) for one in (answers, baseline))
    differences = quality - base
    bounds = [0.0, 0.0] if is_exact and not differences.any() else paired_bounds(quality, base)
    tokens, forwards, window_queries = (
        sum(getattr(answer, name) for answer in answers) for name in ("tokens", "forwards", "window_queries")
    )
    speed, base_speed = (np.array([answer.tokens / answer.seconds for answer in one]) for one in (answers, baseline))
    return {
        "num_questions": len(answers),
        "quality": float(quality.mean()),
        "quality_over_autoregressive": float(differences.mean()),
        "quality_over_autoregressive_interval": bounds,
        "same_text_as_autoregressive": float(
            np.mean([answer.text == other.text for answer, other in zip(answers, baseline, strict=True)])
        ),
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / window_queries,
        "tokens_per_second": median_and_quartiles(speed),
        "times_autoregressive": median_and_quartiles(speed / base_speed),
    }


def summaries(answers: dict[str, list[Answer]], decodings: dict[str, dict[str, Any]]) -> dict[str, dict]:
    """The summary of each decoding with its arguments, by label; the baseline must be one of the decodings."""
    return {
        label: {"arguments": decodings[label]}
        | summary(of_label, answers[BASELINE], is_exact=is_exact(decodings[label]))
        for label, of_label in answers.items()
    }


def front(summaries: dict[str, dict]) -> list[str]:
    """The labels of the decodings that no other one beats, the slowest first.

    One decoding beats another if it is at least as good and at least as fast, and not equal in both.
    """

    def place(label: str) -> tuple[float, float]:
        return summaries[label]["quality"], summaries[label]["times_autoregressive"]["median"]

    def is_beaten(label: str) -> bool:
        quality, times = place(label)
        return any(
            other[0] >= quality and other[1] >= times and other != (quality, times) for other in map(place, summaries)
        )

    return sorted((label for label in summaries if not is_beaten(label)), key=lambda label: place(label)[1])
