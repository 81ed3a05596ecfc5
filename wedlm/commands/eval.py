"""`wedlm eval`: scores of lm-eval's tasks beside the speed of the decodings, in one file and one table."""

import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.command import table_console
from wedlm.commands.shared_options import (
    Device,
    Dtype,
    Model,
    OutFile,
    OverwriteFile,
    RepeatedDecodingOptions,
    new_out_file,
    option,
    read_threshold,
)

if TYPE_CHECKING:
    from wedlm.evaluation.recipe import EvalSettings


def eval(
    model: Model = str(DEMO_FOLDER),
    tasks: Annotated[str, option("Tasks of lm-eval or of --include-path, separated by commas.")] = "",
    recipe: Annotated[
        str | None, option("Tasks, shots and settings together: speed, table1-base, ... or a YAML file.")
    ] = None,
    include_path: Annotated[
        list[Path] | None, option("A folder with YAML files of tasks; may be given again.", metavar="FOLDER")
    ] = None,
    num_fewshot: Annotated[int | None, option("The number of examples before each question.")] = None,
    limit: Annotated[int | None, option("Ask only the first N questions of each task.")] = None,
    batch_size: Annotated[int | None, option("Questions that are answered together; by default 8.")] = None,
    apply_chat_template: Annotated[
        bool, option("Use the chat template, for checkpoints trained for chats.", "--apply-chat-template")
    ] = False,
    system_instruction: Annotated[str | None, option("A system message before each question.")] = None,
    max_new_tokens: Annotated[int | None, option("The largest number of tokens of an answer.")] = None,
    temperature: Annotated[
        float | None, option("Sample tokens at this temperature; 0 chooses the most likely token.")
    ] = None,
    seed: Annotated[
        int | None, option("The seed of the examples before questions and of sampling; by default 1234.")
    ] = None,
    metadata: Annotated[
        str | None, option("JSON for the tasks; those of the demo read num_examples and seed.")
    ] = None,
    run_code: Annotated[
        bool,
        option(
            "Allow tasks that run the model's code, in a sandbox: it guards against accidents, not attackers.",
            "--run-code",
        ),
    ] = False,
    unsafe_run_code: Annotated[
        bool, option("Allow --run-code as root without a working sandbox.", "--unsafe-run-code")
    ] = False,
    out: OutFile = None,
    overwrite: OverwriteFile = False,
    dtype: Dtype = "auto",
    device: Device = None,
    *,
    options: RepeatedDecodingOptions,
) -> None:
    """Score MODEL on tasks of lm-eval, and show the score and the speed of each decoding.

    After a stop, the same command continues. docs/evaluate.md describes recipes and tasks of your own.
    """
    given = locals()
    out = new_out_file(out, "eval.json", overwrite)
    from wedlm.checkpoints.resolve import is_gguf, wedlm_folder
    from wedlm.evaluation.decodings import combinations
    from wedlm.evaluation.recipe import EvalSettings, Recipe, read_recipe
    from wedlm.evaluation.sandbox import check_boundary

    of_recipe = Recipe({}, {}, {}, None) if recipe is None else read_recipe(recipe)
    given = {field.name: given[field.name] for field in fields(EvalSettings)}
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    settings = EvalSettings(**of_recipe.settings | given)
    shots = of_recipe.tasks | dict.fromkeys(name for name in tasks.replace(" ", "").split(",") if name)
    if num_fewshot is not None:
        shots = dict.fromkeys(shots)
    values = {name: value for name, value in vars(options).items() if value}
    if "entropy_threshold" in values:
        values["entropy_threshold"] = list(map(read_threshold, values["entropy_threshold"]))
    if values and "decoding" not in values:
        raise ValueError("--window-size and its like need a --decoding that reads them; name one, say streaming.")
    decodings = combinations(values.pop("decoding"), **values) if values else of_recipe.decodings
    if not shots:
        raise ValueError("No task is named; pass --tasks NAME,NAME or --recipe NAME.")
    folders = [*(include_path or []), *filter(None, [of_recipe.include_path])]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"--include-path {folder} is not a folder; give one with YAML files of tasks.")
    of_tasks = read_metadata(metadata)
    wedlm_folder(model, with_weights=False, or_stock=is_gguf(model))
    if run_code:
        check_boundary(unsafe_run_code)
    run_eval(model, shots, folders, settings, decodings, of_tasks, out, dtype, device)


def read_metadata(text: str | None) -> dict[str, Any]:
    try:
        metadata = json.loads(text or "{}")
        if not isinstance(metadata, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--metadata {text} is not JSON ({error}); write it as '{{\"seed\": 1}}'.") from error
    return metadata


def run_eval(
    model_name: str,
    shots: dict[str, int | None],
    folders: list[Path],
    settings: "EvalSettings",
    decodings: dict[str, dict[str, Any]],
    metadata: dict[str, Any],
    out: Path,
    dtype: str,
    device: str | None,
) -> None:
    """Scores a checkpoint, writes the numbers to `out` and prints them as a table."""
    from transformers import logging

    from wedlm.checkpoints.load import load_checkpoint
    from wedlm.checkpoints.resolve import is_gguf
    from wedlm.evaluation.decodings import with_defaults
    from wedlm.evaluation.harness import evaluate
    from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
    from wedlm.evaluation.sandbox import missing_boundary
    from wedlm.evaluation.tasks import load_tasks
    from wedlm.evaluation.work_file import WorkFile, resumable
    from wedlm.generation.custom_generate import resolved_config

    tasks = load_tasks(shots, folders, dict(metadata), settings.run_code, settings.seed)
    if settings.run_code and (sentence := missing_boundary()):
        print(sentence, file=sys.stderr)
    model, tokenizer = load_checkpoint(model_name, dtype, device, only_decodes=True, or_stock=is_gguf(model_name))
    logging.set_verbosity_error()
    if settings.apply_chat_template and tokenizer.chat_template is None:
        raise ValueError(f"{model_name} has no chat template; leave out --apply-chat-template.")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer of {model_name} has no end token; set eos_token in its config.")
    own = model.generation_config.decoding
    decodings = {label: with_defaults(one, model) for label, one in (decodings or {own: {"decoding": own}}).items()}
    for each in decodings.values():
        resolved_config(model, **each)  # a decoding that is refused is refused before the first question
    recorded = {**asdict(settings), "metadata": metadata}
    identity = checkpoint_identity(model, model_name)
    about = {**identity, **conditions(model.device, ["lm_eval"]), "settings": recorded}
    work = WorkFile(out.with_name(f"{out.name}.work"), about)
    with resumable(work):
        results, warnings = evaluate(model, tokenizer, tasks, decodings, settings, work)
    for warning in warnings:
        print(f"lm-eval: {warning}", file=sys.stderr)
    recorded |= {name: identity[name] for name in ("dtype", "product")}
    name = Path(model_name).resolve().name if Path(model_name).is_dir() else model_name
    write_report(out, results, model.device, packages=["lm_eval"], model=name, settings=recorded, **identity)
    work.remove()
    print_table(results, f"{name}, {identity['dtype']}, batch size {settings.batch_size}, {model.device}")
    print(f"Written to {out}.", file=sys.stderr)


def print_table(results: list[dict], title: str) -> None:
    """Prints a column per decoding: the scores of each task, and the speed below them."""
    table = Table("task", "", title=Text(title), title_justify="left")
    decodings = dict.fromkeys(result["decoding"] for result in results)
    for label in decodings:
        table.add_column(Text(label), justify="right")
    for task in dict.fromkeys(result["task"] for result in results):
        columns = {result["decoding"]: cells_of(result) for result in results if result["task"] == task}
        shown = next(result for result in results if result["task"] == task)
        shots = "" if shown["num_fewshot"] is None else f", {shown['num_fewshot']} shots"
        title = f"{task} ({shown['num_examples']}{shots})"
        for name in next(iter(columns.values())):
            table.add_row(Text(title), Text(name), *(columns.get(label, {}).get(name, "") for label in decodings))
            title = ""
    table_console().print(table)


def cells_of(result: dict) -> dict[str, str]:
    """The scores of a task in one decoding, and its speed, by the names of their lines."""
    cells = {}
    for metric in result["metrics"]:
        filtered = "" if metric["filter"] == "none" else f" ({metric['filter']})"
        error = "" if metric["stderr"] is None else f" ±{metric['stderr']:.4f}"
        cells[metric["name"] + filtered] = f"{metric['value']:.4f}{error}"
    for name, digits in (("tokens_per_forward", 2), ("prefix_cacheability", 2), ("tokens_per_second", 0)):
        if result[name] is not None:
            cells[name.replace("_", " ")] = f"{result[name]:.{digits}f}"
    return cells
