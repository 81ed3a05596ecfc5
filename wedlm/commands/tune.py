"""`wedlm tune`: the fastest decoding that keeps quality on somebody's own examples, into generation_config.json."""

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from wedlm.commands.command import table_console
from wedlm.commands.shared_options import Device, Dtype, OutFile, OverwriteFile, new_out_file, option

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from wedlm.evaluation.tuning import Example

QUERY_COST = ("query_cost",)  # among the results of a work file


def tune(
    model: Annotated[Path, typer.Argument(help="The folder of a WeDLM checkpoint, or a GGUF file.")],
    data: Annotated[Path, option("JSON Lines with prompt and answer, or with messages.", metavar="FILE")],
    max_quality_loss: Annotated[
        str, option("The share of answers that may be lost, compared with autoregressive decoding.")
    ] = "1%",
    measure: Annotated[
        str | None,
        option(
            "When an answer is right: exact, contains, last-number, or agreement with the autoregressive text.",
            show_default="exact, or agreement if the data have no answers",
        ),
    ] = None,
    max_new_tokens: Annotated[int, option("The largest number of tokens of an answer.", min=1)] = 256,
    out: OutFile = None,
    overwrite: OverwriteFile = False,
    dry_run: Annotated[bool, option("Do not change generation_config.json.", "--dry-run")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
) -> None:
    """Find the fastest decoding that keeps quality on your own examples, and write it into generation_config.json.

    Every setting answers every example. After a stop, the same command continues.
    """
    out = new_out_file(out, "tune.json", overwrite)
    from wedlm.checkpoints.resolve import FROM_MODEL, GENERATION_FILE, is_gguf, read_generation_fields, wedlm_folder
    from wedlm.checkpoints.whole_file import write_whole
    from wedlm.evaluation.tuning import measure_of, read_examples, read_share

    loss = read_share(max_quality_loss)
    if out.resolve() == data.resolve():
        raise ValueError(f"--out {out} is the file of --data, which would be replaced; choose another one.")
    examples = read_examples(data)
    measure = measure_of(measure, examples)
    if is_gguf(model):
        config = {}
    elif not model.is_dir():
        raise ValueError(
            f"{model} is not a folder, and {GENERATION_FILE} is written into one; download it (`hf download NAME "
            "--local-dir FOLDER`) and give that."
        )
    else:
        config = read_generation_fields(model)
        folder = wedlm_folder(model, with_weights=False)  # another one, if the model is a draft adapter
        config = config or read_generation_fields(folder)
    from wedlm.checkpoints.load import load_checkpoint

    checkpoint = load_checkpoint(model, dtype, device, only_decodes=True, or_stock=is_gguf(model))
    chosen = choose(*checkpoint, model, examples, measure, loss, max_new_tokens, out)
    if chosen is None:
        return
    if is_gguf(model):
        options = [f"--{name.replace('_', '-')} {value}" for name, value in chosen.items() if value is not None]
        print(f"A GGUF file has no {GENERATION_FILE}; pass {' '.join(options)}.", file=sys.stderr)
        return
    if dry_run:
        print(f"Not written into {model / GENERATION_FILE} (--dry-run).", file=sys.stderr)
        return
    if config.get(FROM_MODEL, not config):
        config |= {FROM_MODEL: False}
    write_whole(model / GENERATION_FILE, json.dumps(config | chosen, indent=2) + "\n")
    print(f"Written into {model / GENERATION_FILE}.", file=sys.stderr)
    print(f'Next: wedlm generate {quote(str(model))} "Why is the sky blue?"', file=sys.stderr)
    if config.get("do_sample"):
        print(f"{GENERATION_FILE} says do_sample, and the settings were compared on greedy texts.", file=sys.stderr)


def choose(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    examples: "list[Example]",
    measure: str,
    loss: float,
    max_new_tokens: int,
    out: Path,
) -> dict[str, Any] | None:
    """Answers all examples in all settings, reports them in `out`, and returns the chosen setting if one is shown.

    What a query costs on this machine is measured first, for verified decoding.
    """
    from transformers import logging

    from wedlm.checkpoints.resolve import GENERATION_FILE
    from wedlm.evaluation.decodings import with_defaults
    from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
    from wedlm.evaluation.sweep import Question, front, summaries, sweep
    from wedlm.evaluation.timing import measured_query_cost
    from wedlm.evaluation.tuning import decide, encoded, most_lost, quality_by, settings_to_try, with_agreement
    from wedlm.evaluation.work_file import WorkFile, resumable
    from wedlm.generation.model_kind import decodings_of

    logging.set_verbosity_error()
    questions = [
        Question(ids, quality_by(measure, example.answer))
        for example, ids in zip(examples, encoded(examples, model, tokenizer, max_new_tokens), strict=True)
    ]
    identity = {**checkpoint_identity(model, folder), "measure": measure, "max_new_tokens": max_new_tokens}
    about = {**identity, **conditions(model.device), "answers": [example.answer for example in examples]}
    work = WorkFile(out.with_name(f"{out.name}.work"), about)
    with resumable(work):
        if QUERY_COST not in work:
            work.add(QUERY_COST, measured_query_cost(model))
        query_cost = model.generation_config.query_cost = work[QUERY_COST]
        tried = settings_to_try(decodings_of(model))
        decodings = {label: with_defaults(setting, model) for label, setting in tried.items()}
        answers = sweep(model, tokenizer, questions, decodings, max_new_tokens, work)
    if measure == "agreement":
        answers = with_agreement(answers)
    bounds = most_lost(answers, decodings)
    results = {label: result | {"most_lost": bounds[label]} for label, result in summaries(answers, decodings).items()}
    chosen, reason = decide(answers, results, loss)
    write_report(
        out,
        results,
        model.device,
        **identity,
        num_examples=len(examples),
        max_quality_loss=loss,
        chosen=chosen,
        query_cost=query_cost,
        front=front(results),
    )
    work.remove()
    print_front(results, front(results), chosen)
    print(f"Every number is in {out}.", file=sys.stderr)
    if chosen is None:
        print(f"Nothing is written into {folder / GENERATION_FILE}: {reason}", file=sys.stderr)
        return None
    print(f"Taken: {chosen}, {reason}", file=sys.stderr)
    print(f"One more query costs {100 * query_cost:.1f} % of a forward with one.", file=sys.stderr)
    return decodings[chosen] | {"query_cost": query_cost}


def print_front(results: dict[str, dict], front: list[str], chosen: str | None) -> None:
    from wedlm.evaluation.decodings import BASELINE
    from wedlm.evaluation.tuning import verdict

    table = Table(title="The front: nothing tried is both faster and more often right", title_justify="left")
    for name in ("", "setting", "right", "over autoregressive", "which is", "times as fast", "tokens/forward"):
        table.add_column(name, justify="left" if name in ("", "setting", "which is") else "right")
    shown = dict.fromkeys(filter(None, [BASELINE, *front, chosen]))
    for label in sorted(shown, key=lambda label: results[label]["times_autoregressive"]["median"]):
        result = results[label]
        low, high = (100 * bound for bound in result["quality_over_autoregressive_interval"])
        slow, fast = result["times_autoregressive"]["quartiles"]
        table.add_row(
            ">" if label == chosen else "",
            label,
            f"{100 * result['quality']:.1f} %",
            f"{100 * result['quality_over_autoregressive']:+.1f} ({low:+.1f} to {high:+.1f})",
            verdict(result),
            f"{result['times_autoregressive']['median']:.2f} ({slow:.2f} to {fast:.2f})",
            f"{result['tokens_per_forward']:.2f}",
        )
    table_console().print(table)
