"""What `wedlm eval` does: tasks of lm-eval, by name or from a folder, in one or several decodings, into rows."""

import difflib
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, get_type_hints

import lm_eval
import numpy as np
import torch
import yaml
from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import TaskDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.evaluation.decodings import check
from wedlm.evaluation.lm import DecodingLM
from wedlm.evaluation.metrics import CodeExecution, modules_missing_in_sandbox, ours_first
from wedlm.evaluation.work_file import WorkFile

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
            for folder in folders:
                check_yaml(folder)
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists those of lm-eval."
            raise EvaluationError(f"There is no task {name!r}; {hint}")
    return manager


def check_yaml(folder: Path) -> None:
    """lm-eval passes over files that it cannot read."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            yaml.compose(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            said = " ".join(str(error).split())
            raise EvaluationError(f"{path} cannot be read as YAML ({said}); correct it, or take it away.") from error


def load_tasks(
    names: dict[str, int | None],
    folders: Iterable[Path] = (),
    metadata: dict[str, Any] | None = None,
    run_code: bool = False,
    seed: int = Choices.seed,
) -> Tasks:
    """`names`: tasks, groups or tags, each with the shots that a recipe asks for, or None; some draw their questions.

    load_tasks({"gsm8k": None, "my_task": 3}, [Path("my_tasks")])
    """
    if not names:
        raise EvaluationError("No task is named; pass --tasks NAME,NAME or --recipe NAME.")
    seed_all(seed)
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
    for name, task in loaded["tasks"].items():
        check_task(name, task, run_code)
        remember_documents(task)
    return Tasks(loaded, fewshot)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def refuse_code(name: str, manager: TaskManager) -> None:
    """Before a task is made, whose own module may need the network for what runs code."""
    config = manager._index[name].cfg or {}
    if config.get("unsafe_code"):
        raise EvaluationError(code_refused(name))


def check_task(name: str, task: Task, run_code: bool) -> None:
    """What would be found out after everything has been generated."""
    if getattr(task, "UNSAFE_CODE", False):
        if not run_code:
            raise EvaluationError(code_refused(name))
        if not uses_sandbox(task):
            raise EvaluationError(
                f"The task {name} runs code outside of the sandbox, by other means than code_eval; leave it out, or "
                "run it with lm_eval itself where that may be."
            )
        try:
            tests = [str(task.doc_to_target(document)) for document in task.eval_docs]
        except Exception as error:  # of a template, or of a function of the task's own
            raise EvaluationError(why_not(name, error)) from error
        if missing := modules_missing_in_sandbox(tests):
            raise EvaluationError(
                f"The tests of the task {name} import {', '.join(missing)}, which the sandbox does not have; leave "
                "the task out."
            )
    if isinstance(task, ConfigurableTask) and task.config.process_results is None:
        for of_task, what in ((task._metric_fn_list, "metric"), (task._aggregation_list, "aggregation of")):
            for metric, function in of_task.items():
                if function is None:
                    raise EvaluationError(f"The task {name} has a {what} {metric!r} that lm-eval does not know.")


def uses_sandbox(task: Task) -> bool:
    """Whether what judges the answers is ours, or has loaded code_eval, which is ours then."""
    functions = [task.config.process_results, *(metric["metric"] for metric in task.config.metric_list or [])]
    return any(
        function.__module__.startswith("wedlm.")
        or any(isinstance(value, CodeExecution) for value in function.__globals__.values())
        for function in functions
        if isfunction(function)
    )


def remember_documents(task: Task) -> None:
    """Some tasks shuffle answers whenever they are asked for their documents, which is for requests and for scores."""
    process = task.config.process_docs if isinstance(task, ConfigurableTask) else None
    if process is None:
        return
    processed: dict[int, Any] = {}

    @wraps(process)
    def once(documents: Any) -> Any:
        if id(documents) not in processed:
            processed[id(documents)] = process(documents)
        return processed[id(documents)]

    task.set_config("process_docs", once)


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


class Collector(logging.Handler):
    """What lm-eval warns of, each sentence once."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.said.setdefault(" ".join(record.getMessage().split()))


@contextmanager
def quiet() -> Iterator[Collector]:
    """lm-eval tells much that the table says as well; what it warns of is collected."""
    logger, collector = logging.getLogger("lm_eval"), Collector()
    level, propagates, handlers = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.WARNING)
    logger.propagate, logger.handlers = False, [collector]
    had_bars = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield collector
    finally:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagates, handlers
        if had_bars:
            enable_progress_bar()


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
) -> tuple[list[dict], list[str]]:
    """A row for each task and decoding, and one for each task that generates nothing; and what lm-eval warned of.

    evaluate(model, tokenizer, load_tasks({"gsm8k": None}), {"verified": {"decoding": "verified"}}, Choices(), work)
    [{"task": "gsm8k", "decoding": "verified", "metrics": [...], "tokens_per_forward": 3.1, ...}], []
    """
    rows, warnings = [], {}
    for number, (label, arguments) in enumerate(decodings.items()):
        configure(tasks, choices)
        seed_all(choices.seed)
        with quiet():
            lm = DecodingLM(model, tokenizer, choices.batch_size, arguments, work, choices.seed, label)
        with quiet() as collector, as_sentences(tasks):
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
            made = rows_of(results, tasks, label, arguments, lm.counts)
        warnings |= collector.said
        rows += [row for row in made if number == 0 or row["decoding"] != LIKELIHOOD]
    return rows, list(warnings)


@contextmanager
def as_sentences(tasks: Tasks) -> Iterator[None]:
    """What a task's own parts raise is of any kind."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, MemoryError):  # of generate(), of a file, of the device
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise EvaluationError(
            f"The tasks {', '.join(tasks.all)} cannot be evaluated ({type(error).__name__}: {said}); correct the one "
            "that it is about, or leave it out. --debug shows where it comes from."
        ) from error


def rows_of(results: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict) -> list[dict]:
    return [row_of(name, results, tasks, label, arguments, counts) for name in results["results"]]


def row_of(
    name: str, results: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict[str, dict]
) -> dict:
    members = leaves(name, results["group_subtasks"])
    of_members = [tasks.all[member] for member in members]
    generates = any(task.get_config("output_type") == GENERATES for task in of_members)
    measured = results["results"][name]
    return {
        "task": name,
        "title": measured.get("alias", name).strip(" -"),
        "dataset": shared(task.DATASET_PATH for task in of_members) or name,
        "dataset_config": shared(task.DATASET_NAME for task in of_members),
        "split": shared(task.get_config("test_split") or task.get_config("validation_split") for task in of_members)
        or "",
        "num_fewshot": shared(results["n-shot"].get(member) for member in members),
        "num_examples": sum(results["n-samples"][member]["effective"] for member in members),
        "version": results["versions"].get(name),
        "is_group": name not in tasks.all,
        "decoding": label if generates else LIKELIHOOD,
        "arguments": arguments if generates else {},
        "metrics": metrics_of(measured, results["higher_is_better"].get(name, {})),
        **speeds([counts[member] for member in members if generates]),
    }


def shared(values: Iterable) -> Any:
    """What all tasks of a group have, or None."""
    first, *others = dict.fromkeys(values)
    return None if others else first


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
        unknown = recipe.keys() - {"about", "tasks", "decodings", "settings", "include_path"}
        tasks, decodings, settings = dict(recipe["tasks"]), recipe.get("decodings", {}), recipe.get("settings", {})
        if unknown:
            raise ValueError(f"it has {', '.join(sorted(unknown))}")
        for task, shots in tasks.items():
            if not (shots is None or type(shots) is int and shots >= 0):
                raise ValueError(f"{task} has {shots!r} shots")
        for arguments in decodings.values():
            check(arguments, "decodings")
        check_settings(settings)
        include_path = recipe.get("include_path")
        if include_path is not None:
            include_path = (path.parent / include_path).resolve()
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"--recipe {name} cannot be used ({type(error).__name__}: {' '.join(str(error).split())}); it needs "
            "`tasks:` with the shots of each, and may have `decodings:`, `settings:`, `include_path:` and `about:`."
        ) from error
    return Recipe(tasks, decodings, settings, include_path)


def check_settings(settings: dict[str, Any]) -> None:
    known = get_type_hints(Choices)
    del known["run_code"]  # which the caller alone says
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"there is no setting {name!r}, but {', '.join(sorted(known))}")
        kind = known[name] | int if known[name] == float | None else known[name]
        if not isinstance(value, kind) or isinstance(value, bool) != (known[name] is bool):
            raise ValueError(f"the setting {name} is {value!r}")
