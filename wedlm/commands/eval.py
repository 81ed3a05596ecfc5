"""`wedlm eval`: scores of lm-eval's tasks beside the speed of the decodings, in one file and one table."""

import sys
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text
from transformers import logging

from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.resolve import checkpoint_folder
from wedlm.commands.checks import EvalPlan
from wedlm.commands.options import EvalOptions
from wedlm.commands.reports import table_console
from wedlm.evaluation.choices import EvaluationError
from wedlm.evaluation.decodings import whole
from wedlm.evaluation.harness import evaluate
from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
from wedlm.evaluation.sandbox import missing_boundary
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.work_file import WorkFile, resumable


def run_eval(options: EvalOptions, asked: EvalPlan) -> None:
    """Scores a checkpoint, writes the numbers to --out and prints them as a table."""
    choices, decodings, metadata = asked.choices, asked.decodings, asked.metadata
    tasks = load_tasks(asked.tasks, asked.folders, dict(metadata), choices.run_code, choices.seed)
    if choices.run_code and (sentence := missing_boundary()):
        print(sentence, file=sys.stderr)
    model, tokenizer = load_checkpoint(options.model, options.dtype, options.device, only_decodes=True)
    logging.set_verbosity_error()
    if choices.apply_chat_template and tokenizer.chat_template is None:
        raise EvaluationError(f"{options.model} has no chat template; leave out --apply-chat-template.")
    if tokenizer.eos_token_id is None:
        raise EvaluationError(f"The tokenizer of {options.model} has no end token; set eos_token in its config.")
    decodings = decodings or {model.generation_config.decoding: {"decoding": model.generation_config.decoding}}
    decodings = {label: whole(arguments, model) for label, arguments in decodings.items()}
    settings = {**asdict(choices), "metadata": metadata}
    identity = checkpoint_identity(model, checkpoint_folder(options.model, with_weights=True))
    about = {**identity, **conditions(model.device, ["lm_eval"]), "settings": settings}
    work = WorkFile(options.out.with_name(f"{options.out.name}.work"), about)
    with resumable(work):
        results, warnings = evaluate(model, tokenizer, tasks, decodings, choices, work)
    for warning in warnings:
        print(f"lm-eval: {warning}", file=sys.stderr)
    settings |= {name: identity[name] for name in ("dtype", "product")}
    name = Path(options.model).resolve().name if Path(options.model).is_dir() else options.model
    write_report(options.out, results, model.device, packages=["lm_eval"], model=name, settings=settings, **identity)
    work.remove()
    print_table(results, f"{name}, {identity['dtype']}, batch size {choices.batch_size}, {model.device}")
    print(f"Written to {options.out}.", file=sys.stderr)


def side_by_side(results: list[dict]) -> list[list[str]]:
    """A header and lines of cells, a column per decoding: the scores of each task, and the speed beside them."""
    decodings = list(dict.fromkeys(result["decoding"] for result in results))
    lines = [["task", "", *decodings]]
    for task in dict.fromkeys(result["task"] for result in results):
        by_decoding = {result["decoding"]: result for result in results if result["task"] == task}
        any_result = next(iter(by_decoding.values()))
        shots = "" if any_result["num_fewshot"] is None else f", {any_result['num_fewshot']} shots"
        title = f"{task} ({any_result['num_examples']}{shots})"
        for i, metric in enumerate(any_result["metrics"]):
            cells = [score(by_decoding[label]["metrics"][i]) if label in by_decoding else "" for label in decodings]
            filtered = "" if metric["filter"] == "none" else f" ({metric['filter']})"
            lines.append([title, metric["name"] + filtered, *cells])
            title = ""
        for name, words, digits in (
            ("tokens_per_forward", "tokens per forward", 2),
            ("prefix_cacheability", "prefix cacheability", 2),
            ("tokens_per_second", "tokens per second", 0),
        ):
            values = [by_decoding[label][name] if label in by_decoding else None for label in decodings]
            if any(value is not None for value in values):
                lines.append([title, words, *("" if value is None else f"{value:.{digits}f}" for value in values)])
                title = ""
    return lines


def score(metric: dict) -> str:
    error = "" if metric["stderr"] is None else f" ±{metric['stderr']:.4f}"
    return f"{metric['value']:.4f}{error}"


def print_table(results: list[dict], title: str) -> None:
    header, *lines = side_by_side(results)
    table = Table(title=Text(title), title_justify="left")
    for number, cell in enumerate(header):
        table.add_column(Text(cell), justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*map(Text, line))
    table_console().print(table)
