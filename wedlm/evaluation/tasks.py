"""Loads tasks of lm-eval by name, from its own collection or from a folder, and refuses those that cannot be run."""

import difflib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

import yaml
from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import TaskDict
from transformers import set_seed

from wedlm.checkpoints.errors import one_line
from wedlm.evaluation.code_eval import CodeExecution, modules_missing_in_sandbox, our_code_eval_first
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.sandbox import run_python

GENERATES = "generate_until"  # lm-eval's output_type of tasks that generate text


@dataclass(frozen=True)
class Tasks:
    """Loaded tasks, with their data."""

    loaded: TaskDict  # tasks and groups by name
    fewshot: dict[str, int]  # the shots that a recipe asks for, by task

    @property
    def all(self) -> dict[str, Task]:
        return self.loaded["tasks"]


def load_tasks(
    names: dict[str, int | None],
    folders: Iterable[Path] = (),
    metadata: dict[str, Any] | None = None,
    run_code: bool = False,
    seed: int = EvalSettings.seed,
) -> Tasks:
    """Loads tasks, groups and tags of lm-eval with their data.

        load_tasks({"gsm8k": None, "my_task": 3}, [Path("my_tasks")])

    The number of shots is the one that a recipe asks for. Tasks may read `metadata`, and draw their questions with
    `seed` while they are built.
    """
    set_seed(seed)
    with quiet_lm_eval(), our_code_eval_first():
        manager = manager_of(list(names), list(folders), metadata or {})
        for name in names:
            config = manager._index[name].cfg or {}
            if config.get("unsafe_code") and not run_code:  # building it may need the network
                refuse_code(name)
        built, fewshot = [], {}
        for name, shots in names.items():
            try:
                found = manager.load([name])
            except Exception as error:  # a task may raise anything while it is built
                raise not_built(name, error) from error
            built += [found["groups"][name]] if name in found["groups"] else found["tasks"].values()
            fewshot |= dict.fromkeys(found["tasks"], shots) if shots is not None else {}
        try:
            loaded = manager.load(built)
        except ValueError as error:
            raise ValueError(f"--tasks {','.join(names)}: {error}; name each task once.") from error
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            check_code(name, task, run_code)
        check_metrics(name, task)
        if isinstance(task, ConfigurableTask) and (process := task.config.process_docs) is not None:
            # lm-eval asks for documents twice, for requests and scores, and some tasks shuffle theirs each time.
            task.set_config("process_docs", cache(process))
    return Tasks(loaded, fewshot)


@contextmanager
def quiet_lm_eval() -> Iterator[dict[str, None]]:
    """Silences lm-eval's log and progress bars, since our table repeats its output, and yields its warnings, once."""
    logger, handler = logging.getLogger("lm_eval"), logging.Handler(logging.WARNING)
    warnings: dict[str, None] = {}
    handler.emit = lambda record: warnings.setdefault(" ".join(record.getMessage().split()))
    before = logger.level, logger.propagate, logger.handlers
    had_bars = is_progress_bar_enabled()
    logger.setLevel(logging.WARNING)
    logger.propagate, logger.handlers = False, [handler]
    disable_progress_bar()
    try:
        yield warnings
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
        if had_bars:
            enable_progress_bar()


# --- Finding a task by its name ---


def manager_of(names: list[str], folders: list[Path], metadata: dict[str, Any]) -> TaskManager:
    """A manager that knows all `names`, without lm-eval's own tasks if possible: reading those takes 10 s."""
    paths = [str(folder) for folder in folders]
    manager = TaskManager(include_path=paths, include_defaults=False, metadata=metadata)
    if set(names) <= set(manager.all_tasks):
        return manager
    manager = TaskManager(include_path=paths, metadata=metadata)
    for name in names:
        if name not in manager.all_tasks:
            for folder in folders:
                check_yaml(folder)
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists lm-eval's own."
            raise ValueError(f"There is no task {name!r}; {hint}")
    return manager


def check_yaml(folder: Path) -> None:
    """Refuses a folder with a broken YAML file, which lm-eval would skip in silence."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            yaml.compose(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read as YAML ({one_line(error)}); correct or remove it.") from error


def not_built(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"The task {name} cannot be built ({type(error).__name__}: {one_line(error)}); correct it, connect to the "
        "network if its data is not on this machine, or leave it out."
    )


# --- Refusing a task before hours are spent on it ---


def refuse_code(name: str) -> None:
    raise ValueError(
        f"The task {name} runs code that the model writes; pass --run-code to allow it, in a sandbox against "
        "accidents, not attackers, or leave the task out."
    )


def check_metrics(name: str, task: Task) -> None:
    """Refuses a metric that lm-eval does not know, before the answers are generated that it would score."""
    if not isinstance(task, ConfigurableTask) or task.config.process_results is not None:
        return
    for functions, kind in ((task._metric_fn_list, "metric"), (task._aggregation_list, "aggregation of")):
        for metric, function in functions.items():
            if function is None:
                raise ValueError(
                    f"The task {name} has a {kind} {metric!r} that lm-eval does not know; correct its YAML file."
                )


def check_code(name: str, task: Task, run_code: bool) -> None:
    """Refuses a task whose code may not run, would run outside of the sandbox, or could not run in it."""
    if not run_code:
        refuse_code(name)
    if not uses_sandbox(task):
        raise ValueError(
            f"The task {name} runs code outside of the sandbox, by other means than code_eval; leave it out, or "
            "run it with lm_eval itself on a machine where that is safe."
        )
    try:
        tests = [str(task.doc_to_target(document)) for document in task.eval_docs]
    except Exception as error:  # a template or a function of the task may raise anything
        raise not_built(name, error) from error
    if missing := modules_missing_in_sandbox(tests):
        raise ValueError(
            f"The tests of the task {name} import {', '.join(missing)}, which the sandbox does not have; leave "
            "the task out."
        )


def uses_sandbox(task: Task) -> bool:
    """Whether the task is scored by a module that has imported our run_python(), or loaded our code_eval."""
    functions = [task.config.process_results, *(metric["metric"] for metric in task.config.metric_list or [])]
    return any(
        value is run_python or isinstance(value, CodeExecution)
        for function in functions
        if isfunction(function)
        for value in function.__globals__.values()
    )
