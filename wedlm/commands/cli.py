"""The `wedlm` command: a thin function for each subcommand, which imports its room when it runs."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.options import (
    Debug,
    EvalOptions,
    ExportOptions,
    GenerationOptions,
    Model,
    OverwriteCheckpoint,
    ServeOptions,
    Source,
    TuneOptions,
    decoding_arguments,
    with_options,
)

app = typer.Typer(
    help="WeDLM, a language model that decodes several tokens per forward.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(is_asked_for: bool) -> None:
    if is_asked_for:
        typer.echo(f"wedlm {version_of('wedlm')}")
        raise typer.Exit


@app.callback()
def commands(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for a terminal that knows fewer letters


def refuse(sentence: object) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


@contextmanager
def refusals(debug: bool) -> Iterator[None]:
    """Turns bad input into one sentence and exit code 2; with `debug` the traceback is shown."""
    try:
        yield
        sys.stdout.flush()  # a closed pipe is noticed here, and not when the process ends
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        if debug or isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        refuse(sentence_of(error))


def sentence_of(error: Exception) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return f"Standard input is not UTF-8 ({said}); convert it, such as with iconv."
    if isinstance(error, RuntimeError | MemoryError):
        return f"There is not enough memory ({said}); ask for fewer tokens, or choose another --dtype or --device."
    if isinstance(error, OSError):
        return f"A file cannot be read or written ({said}); allow it, or choose another place."
    return said


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Says which of the package's extras brings a module that is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"A package is missing ({error}); install wedlm with its extra {name!r}, in a clone of it by "
            f'pip install -e ".[{name}]".'
        ) from error


PROMPT_HELP = "The text to answer; - reads it from standard input. Put -- in front of a text that begins with -."
Prompt = Annotated[str, typer.Argument(help=PROMPT_HELP, metavar="PROMPT")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]


@app.command(epilog='Example: wedlm generate "Count by 5 from 10 to 60."')
@with_options
def generate(
    prompt: Prompt,
    options: GenerationOptions,
    raw: Raw = False,
) -> None:
    """Answer PROMPT, and print the text as it is decoded. A pipe gets the text alone."""
    with refusals(options.debug):
        from wedlm.commands.generate import generate

        generate(prompt, options, raw)


@app.command(epilog="Example: wedlm chat --decoding verified")
@with_options
def chat(options: GenerationOptions) -> None:
    """Talk in turns; what was said stays in the cache. /help lists the commands."""
    with refusals(options.debug):
        from wedlm.commands.chat import chat

        chat(options)


@app.command(epilog='Example: wedlm compare "Count by 5 from 10 to 60."')
@with_options
def compare(
    prompts: Annotated[list[str], typer.Argument(help=PROMPT_HELP, metavar="PROMPT...")],
    options: GenerationOptions,
    raw: Raw = False,
) -> None:
    """Answer each PROMPT token by token and in parallel, side by side, and count.

    With --decoding only that one is compared with autoregressive decoding.
    """
    with refusals(options.debug):
        from wedlm.commands.compare import compare

        compare(prompts, options, raw)


@app.command(epilog='Example: wedlm trace "Count by 5 from 10 to 60." --decoding verified --html trace.html')
@with_options
def trace(
    prompt: Prompt,
    options: GenerationOptions,
    raw: Raw = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page that plays the decoding back; FILE is replaced.", metavar="FILE"),
    ] = None,
) -> None:
    """Answer PROMPT and show each forward: the text that became final, a bar, and the window behind it.

    A dot is an open slot; colours tell how long ago a slot was filled.

    Verified decoding shows its drafts in open slots, how many drafts were accepted, and which one was refuted.
    """
    with refusals(options.debug):
        from wedlm.commands.trace import trace

        trace(prompt, options, raw, html)


@app.command(epilog="Example: wedlm info tencent/WeDLM-8B-Instruct")
def info(
    model: Model = str(DEMO_FOLDER),
    debug: Debug = False,
) -> None:
    """Show what MODEL is, the memory it takes and what it can do, without loading its weights."""
    with refusals(debug):
        from wedlm.commands.info import info

        info(model)


@app.command(epilog="Example: wedlm convert Qwen/Qwen3-8B qwen3-8b-wedlm")
def convert(
    source: Source,
    out: Annotated[str, typer.Argument(help="The folder that the result becomes.")],
    to_autoregressive: Annotated[
        bool, typer.Option("--to-autoregressive", help="From WeDLM to a plain Qwen2 or Qwen3 checkpoint.")
    ] = False,
    overwrite: OverwriteCheckpoint = False,
    debug: Debug = False,
) -> None:
    """Make a WeDLM checkpoint from a Qwen2, Qwen2.5, Qwen3 or released WeDLM checkpoint, or go back."""
    with refusals(debug):
        from wedlm import convert_to_autoregressive, convert_to_wedlm

        result = (convert_to_autoregressive if to_autoregressive else convert_to_wedlm)(
            source, out, overwrite=overwrite
        )
    for note in result.notes:
        typer.echo(f"Note: {note}")
    mask = "no MASK token" if result.mask_token_id is None else f"MASK is token {result.mask_token_id}"
    typer.echo(f"Written to {result.folder} ({mask}).")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: wedlm train lora.yaml --learning_rate 1e-4",
)
def train(
    context: typer.Context,
    config: Annotated[str, typer.Argument(help="A YAML file of arguments; training/configs has some.")],
    debug: Debug = False,
) -> None:
    """Train a WeDLM checkpoint, or a Qwen checkpoint that is converted first: the whole model, LoRA or QLoRA.

    Behind CONFIG any argument may follow as --name value; it overrides the file. docs/train.md lists them.
    """
    with refusals(debug), extra("train"):
        from wedlm.training.train import train

        train([config, *context.args])


@app.command(epilog="Example: wedlm merge out/lora merged")
def merge(
    adapter: Annotated[str, typer.Argument(help="The folder of an adapter of PEFT.")],
    out: Annotated[str, typer.Argument(help="The folder that the result becomes.")],
    overwrite: OverwriteCheckpoint = False,
    debug: Debug = False,
) -> None:
    """Fold an adapter into the checkpoint it was trained on: one whole checkpoint, with its code."""
    with refusals(debug), extra("train"):
        from wedlm.training.merge import merge_adapter

        folder = merge_adapter(adapter, out, overwrite=overwrite)
    typer.echo(f"Written to {folder}.")


@app.command(
    epilog="Example: wedlm export out/full my-wedlm --license apache-2.0 --base-model Qwen/Qwen3-8B --eval eval.json"
)
@with_options
def export(options: ExportOptions) -> None:
    """Make a whole Hub repository of MODEL: weights, code, tokenizer, and a card with the measured numbers.

    It is done when the card's snippet has run in a process that has no wedlm. docs/publish.md says what goes in.
    """
    with refusals(options.debug):
        from wedlm.hub_card.export import CardOptions, export

        card = CardOptions(
            options.license,
            options.base_model or [],
            options.dataset or [],
            options.language or [],
            options.name,
            options.prompt,
            options.eval or [],
            options.training,
        )
        exported = export(
            options.model,
            options.out,
            card,
            push=options.push,
            private=options.private,
            overwrite=options.overwrite,
        )
    for note in exported.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"Written to {exported.folder}.")
    if exported.url is not None:
        typer.echo(f"Pushed to {exported.url}.")


@app.command(epilog="Example: wedlm serve tencent/WeDLM-8B-Instruct --dtype bfloat16 --port 8000")
@with_options
def serve(options: ServeOptions) -> None:
    """Serve one model in OpenAI's protocol, on transformers' own server: chat and completions, streamed or not.

    One request at a time is answered; others wait in line. A request may ask for another decoding: docs/serve.md.
    """
    with refusals(options.debug), extra("serve"):
        from wedlm.serving.server import serve

        serve(options.model, options.host, options.port, options.dtype, options.device, decoding_arguments(options))


@app.command(epilog="Example: wedlm eval --recipe demo --run-code --limit 20")
@with_options
def eval(options: EvalOptions) -> None:
    """Score MODEL on tasks of lm-eval, and show each score beside the speed; several decodings side by side.

    After a stop the same command goes on where it was. docs/evaluate.md describes tasks of your own and the recipes.
    """
    with refusals(options.debug), extra("eval"):
        from wedlm.commands.eval import run_eval

        run_eval(options)


@app.command(epilog="Example: wedlm tune my-wedlm --data questions.jsonl --max-quality-loss 1%")
@with_options
def tune(options: TuneOptions) -> None:
    """Find the fastest decoding that keeps quality on your own examples, and write it into generation_config.json.

    Every setting answers every example, in turns. After a stop the same command goes on where it was.
    """
    with refusals(options.debug), extra("eval"):
        from wedlm.commands.tune import tune

        tune(options)


if __name__ == "__main__":
    app()
