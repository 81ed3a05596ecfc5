"""The prompts of a run: those that the adapter is trained on, and those that are held out."""

from pathlib import Path
from random import Random
from typing import NamedTuple

from wedlm.adapt.settings import AdaptError, AdaptSettings
from wedlm.adapters.prompts import make_prompts
from wedlm.evaluation.tuning import read_examples

LARGEST_SHARE = 4  # at most one in 4 prompts of the user is held out


class Task(NamedTuple):
    """A prompt, and the model's own answer where there is one already."""

    kind: str
    prompt: str | list[dict]
    answer: str | None = None


class Tasks(NamedTuple):
    train: list[Task]
    held_out: list[Task]
    also: list[Task]  # prompts of another file, which are measured as well


def read_tasks(settings: AdaptSettings) -> Tasks:
    """Reads or makes the prompts, and holds some of them out."""
    also = [] if settings.measure_also is None else tasks_of(settings.measure_also, "--measure-also")
    if settings.answers is not None:
        train, held_out = split(tasks_of(settings.answers, "--answers"), settings, f"--answers {settings.answers}")
        if any(task.answer is None for task in train + held_out):
            raise AdaptError(
                f"--answers {settings.answers} has prompts without answers; give them as --prompts, and the model "
                "answers them."
            )
    elif settings.prompts is not None:
        train, held_out = split(tasks_of(settings.prompts, "--prompts"), settings, f"--prompts {settings.prompts}")
        train = [task._replace(answer=None) for task in train]  # an answer in the file need not be the model's own
    else:
        made = (make_prompts(settings.num_prompts, settings.seed), make_prompts(settings.num_held_out, 0, True))
        train, held_out = ([Task(prompt.kind, prompt.text) for prompt in prompts] for prompts in made)
    return Tasks(train, [task._replace(answer=None) for task in held_out], also)


def tasks_of(path: Path, option: str) -> list[Task]:
    return [Task(path.stem, example.prompt, example.answer) for example in read_examples(path, option)]


def split(tasks: list[Task], settings: AdaptSettings, where: str) -> tuple[list[Task], list[Task]]:
    """Splits the tasks of a file; equal prompts are kept together, so none that is held out is trained on.

    Args:
        tasks (`list[Task]`): The tasks.
        settings (`AdaptSettings`): The number of prompts to hold out, and the seed.
        where (`str`): The option and the file, for the message.
    """
    prompts = list(dict.fromkeys(str(task.prompt) for task in tasks))
    num_held_out = min(settings.num_held_out, len(prompts) // LARGEST_SHARE)
    if num_held_out == 0:
        raise AdaptError(
            f"{where} has {len(prompts)} different prompts, too few to hold some out for measuring; give at least "
            f"{LARGEST_SHARE}, and better hundreds."
        )
    held_out = set(Random(settings.seed).sample(prompts, num_held_out))
    parts = ([], [])
    for task in tasks:
        parts[str(task.prompt) in held_out].append(task)
    measured = {str(task.prompt): task for task in parts[1]}  # each prompt once
    return parts[0], list(measured.values())
