"""Runs lm-eval on loaded tasks, once for each decoding, and puts the speed beside the scores."""

from collections.abc import Iterable
from typing import Any

import lm_eval
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from wedlm.checkpoints.errors import one_line
from wedlm.evaluation.lm import COUNTS, DecodingLM
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.tasks import GENERATES, Tasks, quiet_lm_eval
from wedlm.evaluation.work_file import WorkFile

LIKELIHOOD = "likelihood"  # in place of a decoding, for tasks that generate nothing


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Tasks,
    decodings: dict[str, dict[str, Any]],
    settings: EvalSettings,
    work: WorkFile,
) -> tuple[list[dict], list[str]]:
    """Evaluates the tasks with each decoding; answers are kept in `work`, so that a stopped run continues.

        tasks = load_tasks({"gsm8k": None})
        evaluate(model, tokenizer, tasks, {"verified": {"decoding": "verified"}}, EvalSettings(), work)
        [{"task": "gsm8k", "decoding": "verified", "metrics": [...], "tokens_per_forward": 3.1, ...}], []

    There is a result for each task and decoding, and one alone for a task that generates nothing. The strings are
    lm-eval's warnings.
    """
    results, warnings = [], {}
    for number, (label, arguments) in enumerate(decodings.items()):
        configure(tasks, settings)
        set_seed(settings.seed)
        with quiet_lm_eval():
            lm = DecodingLM(model, tokenizer, settings.batch_size, arguments, work, settings.seed, label)
        try:
            with quiet_lm_eval() as collected:
                measured = lm_eval.evaluate(
                    lm,
                    tasks.loaded,
                    limit=settings.limit,
                    apply_chat_template=settings.apply_chat_template,
                    system_instruction=settings.system_instruction,
                    fewshot_as_multiturn=settings.apply_chat_template,
                    confirm_run_unsafe_code=settings.run_code,
                    log_samples=False,
                )
        except (ValueError, OSError, RuntimeError, MemoryError):  # from generate(), a file or the device
            raise
        except Exception as error:  # of any kind, from a task's own code
            raise ValueError(
                f"Evaluating the tasks {', '.join(tasks.all)} failed ({type(error).__name__}: {one_line(error)}); "
                "correct the task that raised this, or leave it out. --debug shows where it was raised."
            ) from error
        warnings |= collected
        of_decoding = [result_of(name, measured, tasks, label, arguments, lm.counts) for name in measured["results"]]
        results += [result for result in of_decoding if number == 0 or result["decoding"] != LIKELIHOOD]
    return results, list(warnings)


def configure(tasks: Tasks, settings: EvalSettings) -> None:
    """Sets the choices on each task as lm_eval.simple_evaluate does; a recipe's shots also replace a task's 0."""
    for name, task in tasks.all.items():
        if task.get_config("output_type") == GENERATES:
            task.set_config("generation_kwargs", settings.generation_arguments(), update=True)
        default = task.get_config("num_fewshot")
        if name in tasks.fewshot:
            task.set_config("num_fewshot", tasks.fewshot[name])
        elif default is None:
            task.set_config("num_fewshot", settings.num_fewshot or 0)
        elif settings.num_fewshot is not None and default != 0:
            task.set_config("num_fewshot", settings.num_fewshot)
        task.set_fewshot_seed(settings.seed)


# --- Results: scores, with the speed they were reached at ---


def result_of(
    name: str, measured: dict, tasks: Tasks, label: str, arguments: dict[str, Any], counts: dict[str, dict]
) -> dict:
    """The result of one task or group, from that of `lm_eval.evaluate` and the counts of each task."""
    members = leaves(name, measured["group_subtasks"])
    member_tasks = [tasks.all[member] for member in members]
    generates = any(task.get_config("output_type") == GENERATES for task in member_tasks)
    values = measured["results"][name]
    split = shared(task.get_config("test_split") or task.get_config("validation_split") for task in member_tasks)
    return {
        "task": name,
        "title": values.get("alias", name).strip(" -"),
        "dataset": shared(task.DATASET_PATH for task in member_tasks) or name,
        "dataset_config": shared(task.DATASET_NAME for task in member_tasks),
        "split": split or "",
        "num_fewshot": shared(measured["n-shot"].get(member) for member in members),
        "num_examples": sum(measured["n-samples"][member]["effective"] for member in members),
        "version": measured["versions"].get(name),
        "is_group": name not in tasks.all,
        "decoding": label if generates else LIKELIHOOD,
        "arguments": arguments if generates else {},
        "metrics": metrics_of(values, measured["higher_is_better"].get(name, {})),
        **speeds([counts[member] for member in members if generates]),
    }


def shared(values: Iterable) -> Any:
    """The value that all have in common, or None."""
    first, *others = dict.fromkeys(values)
    return None if others else first


def leaves(name: str, children: dict[str, list[str]]) -> list[str]:
    """The tasks of a group and of the groups in it; a task is its own only leaf."""
    if name not in children:
        return [name]
    return [leaf for child in children[name] for leaf in leaves(child, children)]


def metrics_of(values: dict[str, Any], higher_is_better: dict[str, bool]) -> list[dict]:
    """The metrics in `values`, which holds {"exact_match,none": 0.9, "exact_match_stderr,none": 0.01, ...}."""
    metrics = []
    for key, value in values.items():
        metric, is_metric, filter_name = key.partition(",")
        if is_metric and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{filter_name}")
            metrics.append(
                {
                    "name": metric,
                    "filter": filter_name,
                    "value": float(value),
                    "stderr": float(error) if isinstance(error, int | float) else None,  # lm-eval writes "N/A"
                    "higher_is_better": higher_is_better.get(metric, True),
                }
            )
    return metrics


def speeds(counts: list[dict[str, float]]) -> dict[str, float | None]:
    """The speed of several tasks together; None where nothing was generated."""
    tokens, forwards, queries, seconds = (sum(count[name] for count in counts) for name in COUNTS)
    if not forwards:
        return dict.fromkeys(("tokens_per_forward", "prefix_cacheability", "tokens_per_second", "num_tokens"))
    return {
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / queries,
        "tokens_per_second": tokens / seconds,
        "num_tokens": tokens,
    }
