"""What `wedlm eval` does: tasks of lm-eval, by name or from a folder, in one or several decodings, into rows."""

import difflib
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import torch
import yaml
from datasets.utils.logging import disable_progress_bar
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import TaskDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.hub_card.evaluation.lm import DecodingLM
from wedlm.hub_card.evaluation.metrics import ours_first
from wedlm.hub_card.evaluation.work_file import WorkFile

LIKELIHOOD = "likelihood"  # in place of a decoding, for tasks that generate nothing
GENERATES = "generate_until"


class EvaluationError(ValueError):
    """What cannot be evaluated: one sentence with the remedy, to be shown as it is."""


@dataclass(frozen=True)
class Choices:
    """How tasks are asked. None leaves it to the task."""

    num_fewshot: int | None = None
    limit: int | None = None
    batch_size: int = 8
    seed: int = 1234
    apply_chat_template: bool = False
    system_instruction: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    run_code: bool = False

    def generation_arguments(self) -> dict[str, Any]:
        arguments = {} if self.max_new_tokens is None else {"max_gen_toks": self.max_new_tokens}
        if self.temperature is not None:
            arguments |= {"do_sample": self.temperature > 0, "temperature": self.temperature}
        return arguments


@dataclass(frozen=True)
class Tasks:
    """Tasks that are loaded, with their data; `fewshot` has the shots that a recipe asks for, by task."""

    loaded: TaskDict
    fewshot: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Task]:
        return self.loaded["tasks"]


# --- Tasks by name ---


def manager_of(names: list[str], folders: list[Path], metadata: dict[str, Any]) -> TaskManager:
    """Of the folders alone where they have all the names: to read lm-eval's own tasks takes ten seconds."""
    for folder in folders:
        if not folder.is_dir():
            raise EvaluationError(f"--include-path {folder} is no folder; give one with YAML files of tasks.")
    paths = [str(folder) for folder in folders]
    manager = TaskManager(include_path=paths, include_defaults=False, metadata=metadata)
    if set(names) <= set(manager.all_tasks):
        return manager
    manager = TaskManager(include_path=paths, metadata=metadata)
    for name in names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists those of lm-eval."
            raise EvaluationError(f"There is no task {name!r}; {hint}")
    return manager


def load_tasks(
    names: dict[str, int | None],
    folders: Iterable[Path] = (),
    metadata: dict[str, Any] | None = None,
    run_code: bool = False,
) -> Tasks:
    """`names`: tasks, groups or tags, each with the shots that a recipe asks for, or None.

    load_tasks({"gsm8k": None, "my_task": 3}, [Path("my_tasks")])
    """
    if not names:
        raise EvaluationError("No task is named; pass --tasks NAME,NAME or --recipe NAME.")
    with quiet(), ours_first():
        manager = manager_of(list(names), list(folders), metadata or {})
        if not run_code:
            for name in names:
                refuse_code(name, manager)
        built, fewshot = [], {}
        for name, shots in names.items():
            try:
                found = manager.load([name])
            except Exception as error:  # of many kinds, by what a task does while it is made
                raise EvaluationError(why_not(name, error)) from error
            built += [found["groups"][name]] if name in found["groups"] else found["tasks"].values()
            fewshot |= dict.fromkeys(found["tasks"], shots) if shots is not None else {}
        try:
            loaded = manager.load(built)
        except ValueError as error:
            raise EvaluationError(f"--tasks {','.join(names)}: {error}; name each task once.") from error
    if not run_code:
        for name, task in loaded["tasks"].items():
            if getattr(task, "UNSAFE_CODE", False):
                raise EvaluationError(code_refused(name))
    return Tasks(loaded, fewshot)


def refuse_code(name: str, manager: TaskManager) -> None:
    """Before a task is made, whose own module may need the network for what runs code."""
    config = manager._index[name].cfg or {}
    if config.get("unsafe_code"):
        raise EvaluationError(code_refused(name))


def code_refused(name: str) -> str:
    return f"The task {name} runs code that the model writes; pass --run-code if that may be, or leave the task out."


def why_not(name: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    causes = chain_of(error)
    if any(isinstance(cause, ConnectionError | OfflineModeIsEnabled | TimeoutError) for cause in causes) or any(
        words in str(cause) for cause in causes for words in ("offline", "Couldn't reach", "Cannot send a request")
    ):
        return (
            f"The task {name} needs its data from {ENDPOINT}, which cannot be reached ({said}); connect to the "
            "network, or give a folder of tasks whose data is here by --include-path."
        )
    if any(isinstance(cause, HfHubHTTPError) for cause in causes):
        return f"The data of the task {name} cannot be had ({said}); `hf auth login` if it asks for an account."
    return f"The task {name} cannot be made ({type(error).__name__}: {said}); correct it, or leave it out."


def chain_of(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


@contextmanager
def quiet():
    """lm-eval tells in many lines what the table says as well."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)


# --- Evaluation ---


def configure(tasks: Tasks, choices: Choices) -> None:
    """As lm_eval.simple_evaluate does, but that a recipe's number of shots also holds where a task says 0."""
    for name, task in tasks.all.items():
        if task.get_config("output_type") == GENERATES:
            task.set_config("generation_kwargs", choices.generation_arguments(), update=True)
        default = task.get_config("num_fewshot")
        if name in tasks.fewshot:
            task.set_config("num_fewshot", tasks.fewshot[name])
        elif default is None:
            task.set_config("num_fewshot", choices.num_fewshot or 0)
        elif choices.num_fewshot is not None and default != 0:
            task.set_config("num_fewshot", choices.num_fewshot)
        task.set_fewshot_seed(choices.seed)


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Tasks,
    decodings: dict[str, dict[str, Any]],
    choices: Choices,
    work: WorkFile,
    show: Callable[[list[dict]], None] = lambda rows: None,
) -> list[dict]:
    """A row for each task and decoding, and one for each task that generates nothing.

    evaluate(model, tokenizer, load_tasks(["gsm8k"]), {"verified": {"decoding": "verified"}}, Choices(), work)
    [{"task": "gsm8k", "decoding": "verified", "metrics": [...], "tokens_per_forward": 3.1, ...}]
    """
    rows = []
    for number, (label, arguments) in enumerate(decodings.items()):
        configure(tasks, choices)
        random.seed(choices.seed)
        np.random.seed(choices.seed)
        torch.manual_seed(choices.seed)
        with quiet():
            lm = DecodingLM(model, tokenizer, choices.batch_size, arguments, work, choices.seed, label)
            try:
                results = lm_eval.evaluate(
                    lm,
                    tasks.loaded,
                    limit=choices.limit,
                    apply_chat_template=choices.apply_chat_template,
                    system_instruction=choices.system_instruction,
                    fewshot_as_multiturn=choices.apply_chat_template,
                    confirm_run_unsafe_code=choices.run_code,
                    log_samples=False,
                )
            except AssertionError as error:  # how lm-eval says that a prompt leaves no room, or that data lacks shots
                raise EvaluationError(f"{' '.join(str(error).split())} Ask for less, or change the task.") from error
        made = rows_of(results, tasks, label, arguments, lm.counts)
        rows += [row for row in made if number == 0 or row["decoding"] != LIKELIHOOD]
        show(rows)
    return rows


def rows_of(results: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict) -> list[dict]:
    return [row_of(name, results, tasks, label, arguments, counts) for name in results["results"]]


def row_of(
    name: str, results: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict[str, dict]
) -> dict:
    members = leaves(name, results["group_subtasks"])
    of_members = [tasks.all[member] for member in members]
    generates = any(task.get_config("output_type") == GENERATES for task in of_members)
    measured = results["results"][name]
    task = of_members[0]
    shots = {results["n-shot"].get(member) for member in members}
    return {
        "task": name,
        "title": measured.get("alias", name).strip(" -"),
        "dataset": task.DATASET_PATH or name,
        "dataset_config": task.DATASET_NAME,
        "split": task.get_config("test_split") or task.get_config("validation_split") or "",
        "num_fewshot": shots.pop() if len(shots) == 1 else None,
        "num_examples": sum(results["n-samples"][member]["effective"] for member in members),
        "version": results["versions"].get(name),
        "is_group": name not in tasks.all,
        "decoding": label if generates else LIKELIHOOD,
        "arguments": arguments if generates else {},
        "metrics": metrics_of(measured, results["higher_is_better"].get(name, {})),
        **speeds([counts[member] for member in members if generates]),
    }


def leaves(name: str, children: dict[str, list[str]]) -> list[str]:
    if name not in children:
        return [name]
    return [leaf for child in children[name] for leaf in leaves(child, children)]


def metrics_of(measured: dict[str, Any], higher_is_better: dict[str, bool]) -> list[dict]:
    """`measured` holds {"exact_match,none": 0.9, "exact_match_stderr,none": 0.01, ...}."""
    metrics = []
    for key, value in measured.items():
        metric, is_metric, filter_name = key.partition(",")
        if is_metric and not metric.endswith("_stderr"):
            error = measured.get(f"{metric}_stderr,{filter_name}")
            metrics.append(
                {
                    "name": metric,
                    "filter": filter_name,
                    "value": float(value),
                    "stderr": float(error) if isinstance(error, int | float) else None,  # "N/A"
                    "higher_is_better": higher_is_better.get(metric, True),
                }
            )
    return metrics


def speeds(counts: list[dict[str, float]]) -> dict[str, float | None]:
    tokens, forwards, window_rows, seconds = (
        sum(count[name] for count in counts) for name in ("tokens", "forwards", "window_rows", "seconds")
    )
    if not forwards:
        return dict.fromkeys(("tokens_per_forward", "prefix_cacheability", "tokens_per_second", "num_tokens"))
    return {
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / window_rows,
        "tokens_per_second": tokens / seconds,
        "num_tokens": tokens,
    }


# --- Recipes ---

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """Tasks with their shots, and settings, as somebody reported numbers with them."""

    tasks: dict[str, int | None]  # with the shots of each
    decodings: dict[str, dict[str, Any]]
    choices: dict[str, Any]
    include_path: Path | None = None


def read_recipe(name: str) -> Recipe:
    """`name`: one of ours, or a YAML file."""
    ours = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = ours.get(name, Path(name))
    if not path.is_file():
        raise EvaluationError(f"--recipe {name} is none of {', '.join(ours)}, and no file; give one of them.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        include_path = recipe.pop("include_path", None)
        return Recipe(
            tasks=dict(recipe.pop("tasks")),
            decodings=dict(recipe.pop("decodings", {})),
            choices=check_choices(recipe.pop("settings", {}), path) | check_empty(recipe, path),
            include_path=include_path and (path.parent / include_path).resolve(),
        )
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, EvaluationError):
            raise
        raise EvaluationError(
            f"--recipe {name} cannot be read ({type(error).__name__}: {' '.join(str(error).split())}); it needs "
            "`tasks:` with the shots of each, and may have `decodings:` and `settings:`."
        ) from error


def check_choices(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    known = Choices.__dataclass_fields__.keys() - {"run_code"}  # which the caller alone says
    for name in settings:
        if name not in known:
            raise EvaluationError(f"{path.name} has a setting {name!r}; there are {', '.join(sorted(known))}.")
    return settings


def check_empty(rest: dict, path: Path) -> dict:
    for name in rest.keys() - {"about"}:
        raise EvaluationError(
            f"{path.name} has {name!r}; a recipe has about, tasks, decodings, settings, include_path."
        )
    return {}
