"""`wedlm eval`: scores of lm-eval's tasks beside the speed of the decodings, in one file and one table."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.command import extra, refusals, table_console
from wedlm.commands.shared_options import (
    Debug,
    Device,
    Dtype,
    Model,
    OutFile,
    OverwriteFile,
    check_out_file,
    option,
    read_threshold,
    setting,
)
from wedlm.generation.parameters import DEFAULTS, check_parameters

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
    decoding: Annotated[
        list[str] | None, setting("streaming, verified, blockwise or autoregressive; may be given again.")
    ] = None,
    window_size: Annotated[list[int] | None, setting("Slots after the final text; may be given again.")] = None,
    entropy_threshold: Annotated[
        list[str] | None, setting("The limit of the entropy in nats, or none; may be given again.")
    ] = None,
    distance_penalty: Annotated[
        list[float] | None, setting("Add this number to the entropy for each slot of distance; may be given again.")
    ] = None,
    acceptance_ratio: Annotated[
        list[float] | None, setting("The share of the best probability that a draft needs; may be given again.")
    ] = None,
    query_cost: Annotated[
        list[float] | None,
        setting("What one more token of a forward costs, as a share of a forward with one; may be given again."),
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
        bool, option("Allow --run-code as root where the system keeps the code from nothing.", "--unsafe-run-code")
    ] = False,
    out: OutFile = Path("eval.json"),
    overwrite: OverwriteFile = False,
    dtype: Dtype = "auto",
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Score MODEL on tasks of lm-eval, and show the score and the speed of each decoding.

    After a stop, the same command continues. docs/evaluate.md describes recipes and tasks of your own.
    """
    with refusals(debug), extra("eval"):
        check_out_file(out, overwrite)
        from wedlm.checkpoints.resolve import wedlm_folder
        from wedlm.evaluation.decodings import combinations
        from wedlm.evaluation.recipe import EvalSettings, Recipe, read_recipe
        from wedlm.evaluation.sandbox import check_boundary

        given = {
            "num_fewshot": num_fewshot,
            "limit": limit,
            "batch_size": batch_size,
            "apply_chat_template": apply_chat_template or None,
            "system_instruction": system_instruction,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "seed": seed,
            "run_code": run_code,
        }
        given = {name: value for name, value in given.items() if value is not None}
        of_recipe = Recipe({}, {}, {}, None) if recipe is None else read_recipe(recipe)
        settings = EvalSettings(**of_recipe.settings | given)
        check_settings(settings)
        shots = of_recipe.tasks | dict.fromkeys(name for name in tasks.replace(" ", "").split(",") if name)
        if num_fewshot is not None:
            shots = dict.fromkeys(shots)
        values = {
            "window_size": window_size,
            "entropy_threshold": [read_threshold(threshold) for threshold in entropy_threshold or []],
            "distance_penalty": distance_penalty,
            "acceptance_ratio": acceptance_ratio,
            "query_cost": query_cost,
        }
        if any(values.values()) and not decoding:
            raise ValueError("--window-size and its like need a --decoding that reads them; name one, say streaming.")
        decodings = combinations(decoding, **values) if decoding else of_recipe.decodings
        for arguments in decodings.values():
            check_parameters(SimpleNamespace(**DEFAULTS | arguments))
        if not shots:
            raise ValueError("No task is named; pass --tasks NAME,NAME or --recipe NAME.")
        folders = [*(include_path or []), *filter(None, [of_recipe.include_path])]
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"--include-path {folder} is no folder; give one with YAML files of tasks.")
        of_tasks = read_metadata(metadata)
        wedlm_folder(model, with_weights=False)
        if run_code:
            check_boundary(unsafe_run_code)
        run_eval(model, shots, folders, settings, decodings, of_tasks, out, dtype, device)


def check_settings(settings: Any) -> None:
    for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1), ("max_new_tokens", 1), ("seed", 0)):
        value = getattr(settings, name)
        if value is not None and not least <= value < 2**31:
            raise ValueError(f"--{name.replace('_', '-')} {value} is too small or too large; give {least} or more.")
    if settings.temperature is not None and not 0 <= settings.temperature < 1e6:
        raise ValueError(f"--temperature {settings.temperature} is no temperature; give 0 or a finite number.")


def read_metadata(text: str | None) -> dict[str, Any]:
    try:
        metadata = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--metadata {text} is no JSON ({error}); write it as '{{\"seed\": 1}}'.") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"--metadata {text} is no JSON object; write it as '{{\"seed\": 1}}'.")
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
    from wedlm.checkpoints.resolve import checkpoint_folder
    from wedlm.evaluation.decodings import with_defaults
    from wedlm.evaluation.harness import evaluate
    from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
    from wedlm.evaluation.sandbox import missing_boundary
    from wedlm.evaluation.tasks import load_tasks
    from wedlm.evaluation.work_file import WorkFile, resumable

    tasks = load_tasks(shots, folders, dict(metadata), settings.run_code, settings.seed)
    if settings.run_code and (sentence := missing_boundary()):
        print(sentence, file=sys.stderr)
    model, tokenizer = load_checkpoint(model_name, dtype, device, only_decodes=True)
    logging.set_verbosity_error()
    if settings.apply_chat_template and tokenizer.chat_template is None:
        raise ValueError(f"{model_name} has no chat template; leave out --apply-chat-template.")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer of {model_name} has no end token; set eos_token in its config.")
    decodings = decodings or {model.generation_config.decoding: {"decoding": model.generation_config.decoding}}
    decodings = {label: with_defaults(arguments, model) for label, arguments in decodings.items()}
    recorded = {**asdict(settings), "metadata": metadata}
    identity = checkpoint_identity(model, checkpoint_folder(model_name, with_weights=True))
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
    decodings = list(dict.fromkeys(result["decoding"] for result in results))
    table = Table("task", "", title=Text(title), title_justify="left")
    for label in decodings:
        table.add_column(Text(label), justify="right")
    for task in dict.fromkeys(result["task"] for result in results):
        by_decoding = {result["decoding"]: result for result in results if result["task"] == task}
        for words, cells in lines_of_task(by_decoding):
            table.add_row(Text(words[0]), Text(words[1]), *(cells.get(label, "") for label in decodings))
    table_console().print(table)


def lines_of_task(by_decoding: dict[str, dict]) -> list[tuple[tuple[str, str], dict[str, str]]]:
    """The lines of a task, each with a title, a name, and the cells by decoding."""
    any_result = next(iter(by_decoding.values()))
    shots = "" if any_result["num_fewshot"] is None else f", {any_result['num_fewshot']} shots"
    title = f"{any_result['task']} ({any_result['num_examples']}{shots})"
    lines = []
    for i, metric in enumerate(any_result["metrics"]):
        filtered = "" if metric["filter"] == "none" else f" ({metric['filter']})"
        cells = {label: score(result["metrics"][i]) for label, result in by_decoding.items()}
        lines.append((metric["name"] + filtered, cells))
    for name, digits in (("tokens_per_forward", 2), ("prefix_cacheability", 2), ("tokens_per_second", 0)):
        if any_result[name] is not None:
            cells = {label: f"{result[name]:.{digits}f}" for label, result in by_decoding.items()}
            lines.append((name.replace("_", " "), cells))
    return [((title if number == 0 else "", name), cells) for number, (name, cells) in enumerate(lines)]


def score(metric: dict) -> str:
    error = "" if metric["stderr"] is None else f" ±{metric['stderr']:.4f}"
    return f"{metric['value']:.4f}{error}"
