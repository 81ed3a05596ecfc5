"""Runs lm-eval on loaded tasks, once for each decoding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lm_eval
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.evaluation.choices import Choices, EvaluationError
from wedlm.evaluation.lm import DecodingLM
from wedlm.evaluation.lm_eval_log import quiet_lm_eval
from wedlm.evaluation.results import LIKELIHOOD, results_of
from wedlm.evaluation.tasks import GENERATES, Tasks, seed_all
from wedlm.evaluation.work_file import WorkFile


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Tasks,
    decodings: dict[str, dict[str, Any]],
    choices: Choices,
    work: WorkFile,
) -> tuple[list[dict], list[str]]:
    """Evaluates the tasks with each decoding.

        tasks = load_tasks({"gsm8k": None})
        evaluate(model, tokenizer, tasks, {"verified": {"decoding": "verified"}}, Choices(), work)
        [{"task": "gsm8k", "decoding": "verified", "metrics": [...], "tokens_per_forward": 3.1, ...}], []

    Args:
        model (`PreTrainedModel`):
            The model that answers.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        tasks (`Tasks`):
            The result of `load_tasks`.
        decodings (`dict[str, dict[str, Any]]`):
            Arguments of `generate()` by label.
        choices (`Choices`):
            How the tasks are asked.
        work (`WorkFile`):
            Where answers are kept, so that a stopped run continues.

    Returns:
        A result for each task and decoding, where a task that generates nothing has one result alone; and the
        warnings of lm-eval.
    """
    results, warnings = [], {}
    for number, (label, arguments) in enumerate(decodings.items()):
        configure(tasks, choices)
        seed_all(choices.seed)
        with quiet_lm_eval():
            lm = DecodingLM(model, tokenizer, choices.batch_size, arguments, work, choices.seed, label)
        with quiet_lm_eval() as collector, errors_of_tasks(tasks):
            measured = lm_eval.evaluate(
                lm,
                tasks.loaded,
                limit=choices.limit,
                apply_chat_template=choices.apply_chat_template,
                system_instruction=choices.system_instruction,
                fewshot_as_multiturn=choices.apply_chat_template,
                confirm_run_unsafe_code=choices.run_code,
                log_samples=False,
            )
            of_decoding = results_of(measured, tasks, label, arguments, lm.counts)
        warnings |= collector.warnings
        results += [result for result in of_decoding if number == 0 or result["decoding"] != LIKELIHOOD]
    return results, list(warnings)


def configure(tasks: Tasks, choices: Choices) -> None:
    """Sets the choices on each task as lm_eval.simple_evaluate does; a recipe's shots also replace a task's 0."""
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


@contextmanager
def errors_of_tasks(tasks: Tasks) -> Iterator[None]:
    """Turns the exceptions of a task's own code, which may be of any kind, into an EvaluationError."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, MemoryError):  # from generate(), a file or the device
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise EvaluationError(
            f"Evaluating the tasks {', '.join(tasks.all)} failed ({type(error).__name__}: {said}); correct the task "
            "that raised this, or leave it out. --debug shows where it was raised."
        ) from error
