"""The prompts of a run: those that the adapter is trained on, and those that are held out."""

from random import Random
from typing import NamedTuple

from wedlm.drafts.prompts import read_prompts
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.tuning import Example, read_examples

PROMPTS_PER_HELD_OUT = 4  # of a user's file: one in 4 is held out at most


class Examples(NamedTuple):
    train: list[Example]
    held_out: list[Example]
    also: list[Example]  # prompts of another file, which are measured as well


def examples_of(settings: AdaptSettings) -> Examples:
    """Reads the prompts, and holds some of them out."""
    answers, file = settings.answers, settings.answers or settings.prompts
    option = "--prompts" if answers is None else "--answers"
    if file is None:
        own = (read_prompts(settings.num_prompts, settings.seed), read_prompts(settings.num_held_out, 0, True))
        train, held_out = (
            [Example(prompt.kind, prompt.text, where=f"the prompt {prompt.text!r}") for prompt in prompts]
            for prompts in own
        )
    else:
        train, held_out = split(read_examples(file, option), settings, f"{option} {file}")
        if answers is None:  # an answer in the file need not be the model's own
            train = [example._replace(answer=None) for example in train]
        elif any(example.answer is None for example in train + held_out):
            raise ValueError(
                f"--answers {answers} has prompts without answers; give them as --prompts, and the model answers them."
            )
    also = [] if settings.measure_also is None else read_examples(settings.measure_also, "--measure-also")
    trained = {key(example) for example in train}
    if both := [example for example in also if key(example) in trained]:
        raise ValueError(
            f"--measure-also {settings.measure_also}: the adapter is trained on {len(both)} of these {len(also)} "
            f"prompts, {both[0].where} for example; remove them there."
        )
    held_out, also = ([example._replace(answer=None) for example in examples] for examples in (held_out, also))
    return Examples(train, held_out, also)


def key(example: Example) -> str:
    """Equal for equal prompts, whether they are texts or messages."""
    return str(example.messages())


def split(examples: list[Example], settings: AdaptSettings, where: str) -> tuple[list[Example], list[Example]]:
    """Splits the examples of a file; equal prompts are kept together, so none that is held out is trained on."""
    prompts = list(dict.fromkeys(map(key, examples)))
    num_held_out = min(settings.num_held_out, len(prompts) // PROMPTS_PER_HELD_OUT)
    if num_held_out == 0:
        raise ValueError(
            f"{where} has {len(prompts)} different prompts, too few to hold some out for measuring; give at least "
            f"{PROMPTS_PER_HELD_OUT}, and better hundreds."
        )
    chosen = set(Random(settings.seed).sample(prompts, num_held_out))
    train = [example for example in examples if key(example) not in chosen]
    held_out = {key(example): example for example in examples if key(example) in chosen}  # each prompt once
    return train, list(held_out.values())
