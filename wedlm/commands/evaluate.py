"""`wedlm eval`: scores of lm-eval's tasks with the speed they were had at, in one file and one table."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import logging

from wedlm.checkpoints.load import checkpoint_folder, load_checkpoint
from wedlm.commands.compare import PIPE_WIDTH
from wedlm.commands.settings import read_threshold
from wedlm.evaluation.choices import Choices, EvaluationError
from wedlm.evaluation.decodings import combinations, whole
from wedlm.evaluation.harness import evaluate
from wedlm.evaluation.provenance import conditions, weights_digest, write_report
from wedlm.evaluation.recipe import read_recipe
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.work_file import WorkFile
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def read_metadata(text: str | None) -> dict[str, Any]:
    try:
        metadata = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise EvaluationError(f"--metadata {text} is no JSON ({error}); write it as '{{\"seed\": 1}}'.") from error
    if not isinstance(metadata, dict):
        raise EvaluationError(f"--metadata {text} is no JSON object; write it as '{{\"seed\": 1}}'.")
    return metadata


def check_choices(choices: Choices) -> None:
    for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1), ("max_new_tokens", 1), ("seed", 0)):
        value = getattr(choices, name)
        if value is not None and not (isinstance(value, int) and least <= value < 2**31):
            raise EvaluationError(
                f"--{name.replace('_', '-')} {value} is too small or too large; give {least} or more."
            )
    if choices.temperature is not None and not 0 <= choices.temperature < 1e6:
        raise EvaluationError(f"--temperature {choices.temperature} is no temperature; give 0 or a finite number.")


@dataclass(frozen=True)
class Asked:
    """What is to be evaluated, as the command line says it; what it says comes before what the recipe does."""

    task_names: list[str]
    recipe_name: str | None
    folders: list[Path]
    choices: dict[str, Any]  # those fields of Choices that are given
    decodings: list[str]
    window_sizes: list[int]
    thresholds: list[str]
    penalties: list[float]
    metadata: str | None


def run_eval(model_name: str, asked: Asked, out: Path, overwrite: bool, dtype: str, device: str | None) -> None:
    check_out(out, overwrite)
    names, folders, choices, decodings = plan(asked)
    tasks = load_tasks(names, folders, read_metadata(asked.metadata), choices.run_code, choices.seed)
    model, tokenizer = load_checkpoint(model_name, dtype, device)
    logging.set_verbosity_error()
    if choices.apply_chat_template and tokenizer.chat_template is None:
        raise EvaluationError(f"{model_name} has no chat template; leave out --apply-chat-template.")
    if tokenizer.eos_token_id is None:
        raise EvaluationError(f"The tokenizer of {model_name} has no end token; set eos_token in its config.")
    decodings = decodings or {model.generation_config.decoding: {"decoding": model.generation_config.decoding}}
    decodings = {label: whole(arguments, model) for label, arguments in decodings.items()}
    settings = {**asdict(choices), "metadata": read_metadata(asked.metadata)}
    identity = identity_of(model, checkpoint_folder(model_name, with_weights=True))
    about = {**identity, **conditions(model.device, ["lm_eval"]), "settings": settings}
    work = WorkFile(out.with_name(f"{out.name}.work"), about)
    with told_where_it_goes_on(work):
        rows, warnings = evaluate(model, tokenizer, tasks, decodings, choices, work)
    for warning in warnings:
        print(f"lm-eval: {warning}", file=sys.stderr)
    settings["dtype"] = identity["dtype"]
    name = Path(model_name).resolve().name if Path(model_name).is_dir() else model_name
    write_report(out, rows, model.device, packages=["lm_eval"], model=name, settings=settings, **identity)
    work.remove()
    print_table(rows, f"{name}, {identity['dtype']}, batch size {choices.batch_size}, {model.device}")
    print(f"Written to {out}.", file=sys.stderr)


def identity_of(model: WeDLMForCausalLM, folder: Path) -> dict[str, Any]:
    """What answers depend on besides what is asked: weights, the files beside them, and how texts are generated."""
    beside = [path for name in BESIDE_WEIGHTS if (path := folder / name).exists()]
    return {
        "weights_sha256": weights_digest(folder),
        "files_sha256": sha256(b"".join(path.read_bytes() for path in beside)).hexdigest(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "generation_config": model.generation_config.to_diff_dict(),
    }


@contextmanager
def told_where_it_goes_on(work: WorkFile) -> Iterator[None]:
    if work.results:
        print(f"Going on from what {work.path.parent} holds.", file=sys.stderr)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped; the same command goes on from what {work.path.parent} holds.", file=sys.stderr)
        raise
    except BaseException:
        if not work.results:
            work.remove()
        raise


def check_out(out: Path, overwrite: bool) -> None:
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise EvaluationError(f"--out {out} is a folder, or lies in one that is not there; choose a file.")
    if out.exists() and not overwrite:
        raise EvaluationError(f"--out {out} exists; choose another file, or pass --overwrite.")


def plan(asked: Asked) -> tuple[dict[str, int | None], list[Path], Choices, dict[str, dict]]:
    """Tasks with their shots, folders of tasks, choices, and decodings by label."""
    names: dict[str, int | None] = dict.fromkeys(asked.task_names)
    folders, choices, decodings = asked.folders, Choices(), {}
    if asked.recipe_name is not None:
        recipe = read_recipe(asked.recipe_name)
        names = recipe.tasks | names
        if "num_fewshot" in asked.choices:
            names = dict.fromkeys(names)
        folders = [*folders, *filter(None, [recipe.include_path])]
        choices, decodings = replace(choices, **recipe.choices), recipe.decodings
    choices = replace(choices, **asked.choices)
    check_choices(choices)
    if asked.decodings:
        thresholds = [read_threshold(threshold) for threshold in asked.thresholds]
        decodings = combinations(asked.decodings, asked.window_sizes, thresholds, asked.penalties)
    elif asked.window_sizes or asked.thresholds or asked.penalties:
        raise EvaluationError("--window-size and its like need a --decoding that reads them; name one, say streaming.")
    return names, folders, choices, decodings


def side_by_side(rows: list[dict]) -> list[list[str]]:
    """A header, and lines of cells: for each task its scores and what they were had at, a column for each decoding."""
    decodings = list(dict.fromkeys(row["decoding"] for row in rows))
    lines = [["task", "", *decodings]]
    for task in dict.fromkeys(row["task"] for row in rows):
        by_decoding = {row["decoding"]: row for row in rows if row["task"] == task}
        any_row = next(iter(by_decoding.values()))
        shots = "" if any_row["num_fewshot"] is None else f", {any_row['num_fewshot']} shots"
        title = f"{task} ({any_row['num_examples']}{shots})"
        for i, metric in enumerate(any_row["metrics"]):
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


def print_table(rows: list[dict], title: str) -> None:
    header, *lines = side_by_side(rows)
    table = Table(title=Text(title), title_justify="left")
    for number, cell in enumerate(header):
        table.add_column(Text(cell), justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*map(Text, line))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
