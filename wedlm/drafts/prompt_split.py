"""The prompts of a run: those that the adapter is trained on, and those that are held out."""

from pathlib import Path
from random import Random
from typing import NamedTuple

from wedlm.drafts.prompts import read_prompts
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.tuning import read_examples

PROMPTS_PER_HELD_OUT = 4  # of a user's file: one in 4 is held out at most


class Task(NamedTuple):
    """A prompt, and the model's own answer where there is one already."""

    kind: str  # of the package's prompts, or the name of the file
    prompt: str | list[dict]  # a text, or messages
    answer: str | None = None
    where: str = ""  # for error messages

    def messages(self) -> list[dict]:
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt


class Tasks(NamedTuple):
    train: list[Task]
    held_out: list[Task]
    also: list[Task]  # prompts of another file, which are measured as well


def read_tasks(settings: AdaptSettings) -> Tasks:
    """Reads the prompts, and holds some of them out."""
    if settings.answers is not None:
        train, held_out = split(tasks_of(settings.answers, "--answers"), settings, f"--answers {settings.answers}")
        if any(task.answer is None for task in train + held_out):
            raise ValueError(
                f"--answers {settings.answers} has prompts without answers; give them as --prompts, and the model "
                "answers them."
            )
    elif settings.prompts is not None:
        train, held_out = split(tasks_of(settings.prompts, "--prompts"), settings, f"--prompts {settings.prompts}")
        train = [task._replace(answer=None) for task in train]  # an answer in the file need not be the model's own
    else:
        own = (read_prompts(settings.num_prompts, settings.seed), read_prompts(settings.num_held_out, 0, True))
        train, held_out = (
            [Task(prompt.kind, prompt.text, where=f"the prompt {prompt.text!r}") for prompt in prompts]
            for prompts in own
        )
    also = [] if settings.measure_also is None else tasks_of(settings.measure_also, "--measure-also")
    trained = {key(task) for task in train}
    if both := [task for task in also if key(task) in trained]:
        raise ValueError(
            f"--measure-also {settings.measure_also}: the adapter is trained on {len(both)} of these {len(also)} "
            f"prompts, {both[0].where} for example; remove them there."
        )
    held_out, also = ([task._replace(answer=None) for task in tasks] for tasks in (held_out, also))
    return Tasks(train, held_out, also)


def tasks_of(path: Path, option: str) -> list[Task]:
    return [
        Task(path.stem, example.prompt, example.answer, f"{path}, line {example.line}")
        for example in read_examples(path, option)
    ]


def key(task: Task) -> str:
    """Equal for equal prompts, whether they are texts or messages."""
    return str(task.messages())


def split(tasks: list[Task], settings: AdaptSettings, where: str) -> tuple[list[Task], list[Task]]:
    """Splits the tasks of a file; equal prompts are kept together, so none that is held out is trained on."""
    prompts = list(dict.fromkeys(map(key, tasks)))
    num_held_out = min(settings.num_held_out, len(prompts) // PROMPTS_PER_HELD_OUT)
    if num_held_out == 0:
        raise ValueError(
            f"{where} has {len(prompts)} different prompts, too few to hold some out for measuring; give at least "
            f"{PROMPTS_PER_HELD_OUT}, and better hundreds."
        )
    chosen = set(Random(settings.seed).sample(prompts, num_held_out))
    train = [task for task in tasks if key(task) not in chosen]
    held_out = {key(task): task for task in tasks if key(task) in chosen}  # each prompt once
    return train, list(held_out.values())
