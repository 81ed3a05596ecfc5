"""The `wedlm` command: a thin function for each subcommand, which imports its room when it runs."""

import atexit
import gc
import io
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.checks import (
    MOVED,
    check_export,
    check_export_for_vllm,
    check_generation,
    check_readable,
    check_source_and_out,
    model_and_prompts,
    plan_eval,
    plan_tune,
)
from wedlm.commands.command import Command, Group, TrainCommand
from wedlm.commands.options import (
    DEMO,
    MODEL_HELP,
    AdaptOptions,
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
from wedlm.commands.reports import check_writable

if TYPE_CHECKING:
    from wedlm.hub_card.export import Exported

app = typer.Typer(
    cls=Group,
    help="WeDLM, a language model that decodes several tokens per forward. MODEL is the first argument of every "
    "command; where it may be left out, that means the demo checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
command = partial(app.command, cls=Command)


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
    if isinstance(error, RuntimeError | MemoryError):
        return f"There is not enough memory ({said}); ask for fewer tokens, or choose another --dtype or --device."
    if isinstance(error, OSError):
        return f"A file cannot be read or written ({said}); allow it, or choose another place."
    return said


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Spares a short command the garbage collector, which looks through all that torch and transformers keep.

    It would take a third of the command's time, half of it when the process ends.
    """
    atexit.register(gc.freeze)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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


WORDS_HELP = (
    "MODEL is a checkpoint: a folder, or a name on the Hub; left out, the demo checkpoint. PROMPT is the text to "
    "answer; - reads it from standard input. Put -- before a text that begins with -."
)
Words = Annotated[list[str], typer.Argument(help=WORDS_HELP, metavar="[MODEL] PROMPT")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text without the chat template.")]


@command(epilog='Example: wedlm generate "Count by 5 from 10 to 60."')
@with_options
def generate(
    words: Words,
    options: GenerationOptions,
    raw: Raw = False,
) -> None:
    """Answer PROMPT, and print the text while it is decoded. Standard output gets only the text."""
    with refusals(options.debug):
        options, (prompt,) = model_and_prompts(words, options, most=1)
        check_generation(options)
        from wedlm.commands.generate import generate

        generate(prompt, options, raw)


@command(epilog="Example: wedlm chat --decoding streaming")
@with_options
def chat(
    options: GenerationOptions,
    checkpoint: Annotated[str | None, typer.Argument(help=MODEL_HELP, metavar="MODEL", show_default=DEMO)] = None,
) -> None:
    """Hold a conversation; earlier turns stay in the cache. In the chat, /help lists the commands."""
    with refusals(options.debug):
        if checkpoint is not None:
            options = replace(options, model=checkpoint)
        elif options.model != GenerationOptions.model:
            typer.echo(MOVED, err=True)
        check_generation(options)
        from wedlm.commands.chat import chat

        chat(options)


@command(epilog='Example: wedlm compare "Count by 5 from 10 to 60."')
@with_options
def compare(
    words: Annotated[list[str], typer.Argument(help=WORDS_HELP, metavar="[MODEL] PROMPT...")],
    options: GenerationOptions,
    raw: Raw = False,
) -> None:
    """Answer each PROMPT in several decodings, and show texts, tokens, forwards and seconds side by side.

    With --decoding, compare only that decoding with autoregressive decoding.
    """
    with refusals(options.debug):
        options, prompts = model_and_prompts(words, options, most=None)
        check_generation(options)
        from wedlm.commands.compare import compare

        compare(prompts, options, raw)


@command(epilog='Example: wedlm trace "Count by 5 from 10 to 60." --html trace.html')
@with_options
def trace(
    words: Words,
    options: GenerationOptions,
    raw: Raw = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write a web page where the decoding races token by token decoding; FILE is overwritten. This "
            "answers the prompt several times more, to measure the times.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Answer PROMPT and show each forward: the text that became final, a bar, and the window of slots after it.

    A dot is an open slot; the colour of a filled slot shows how long ago it was filled.

    Verified decoding shows drafts in open slots, the number of accepted drafts, and the draft that was refuted.
    """
    with refusals(options.debug):
        options, (prompt,) = model_and_prompts(words, options, most=1)
        if html is not None:
            check_writable("--html", html)
        check_generation(options)
        from wedlm.commands.trace import trace

        trace(prompt, options, raw, html)


@command(epilog="Example: wedlm info tencent/WeDLM-8B-Instruct")
def info(
    model: Model = str(DEMO_FOLDER),
    debug: Debug = False,
) -> None:
    """Show the kind, size, memory and decodings of MODEL without loading its weights."""
    with refusals(debug), no_garbage_collection():
        from wedlm.checkpoints.resolve import checkpoint_of

        check_readable(checkpoint_of(model))
        from wedlm.commands.info import info

        info(model)


@command(epilog="Example: wedlm convert Qwen/Qwen3-8B qwen3-8b-wedlm")
def convert(
    source: Source,
    out: Annotated[str, typer.Argument(help="The new folder for the result.")],
    to_autoregressive: Annotated[
        bool,
        typer.Option("--to-autoregressive", help="Convert WeDLM to a plain Llama, Mistral or Qwen checkpoint."),
    ] = False,
    overwrite: OverwriteCheckpoint = False,
    debug: Debug = False,
) -> None:
    """Make a WeDLM checkpoint from one of Qwen2, Qwen3, Llama, Mistral or a released WeDLM, or convert it back."""
    with refusals(debug):
        check_source_and_out(source, out, overwrite)
        from wedlm import convert_to_autoregressive, convert_to_wedlm

        result = (convert_to_autoregressive if to_autoregressive else convert_to_wedlm)(
            source, out, overwrite=overwrite
        )
    for note in result.notes:
        typer.echo(f"Note: {note}")
    mask = "no MASK token" if result.mask_token_id is None else f"MASK is token {result.mask_token_id}"
    typer.echo(f"Written to {result.folder} ({mask}).")
    if not to_autoregressive:
        typer.echo(f'Next: wedlm generate {shlex.quote(str(result.folder))} "Why is the sky blue?"')


@app.command(
    cls=TrainCommand,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: wedlm train lora.yaml --learning_rate 1e-4",
)
def train(
    context: typer.Context,
    config: Annotated[str, typer.Argument(help="A YAML file of arguments; training/configs has examples.")],
    debug: Debug = False,
) -> None:
    """Train a WeDLM checkpoint, or a stock one that is converted first: the whole model, LoRA or QLoRA.

    CONFIG has lines such as `model: NAME`. Behind it any argument may follow as --name value; it overrides the file.

    All arguments of transformers' TrainingArguments are taken too, such as --output_dir, --learning_rate,
    --num_train_epochs and --resume_from_checkpoint true: https://huggingface.co/docs/transformers/main_classes/trainer
    """
    with refusals(debug), extra("train"):
        from wedlm.training.run_arguments import check_before_torch

        arguments = [config, *context.args]
        check_before_torch(arguments)
        from wedlm.training.train import train

        train(arguments)


@command(epilog="Example: wedlm merge out/lora merged")
def merge(
    adapter: Annotated[str, typer.Argument(help="The folder of a PEFT adapter.")],
    out: Annotated[str, typer.Argument(help="The new folder for the result.")],
    overwrite: OverwriteCheckpoint = False,
    debug: Debug = False,
) -> None:
    """Merge an adapter with the checkpoint it was trained on, and write one whole checkpoint with its code."""
    with refusals(debug), extra("train"):
        from wedlm.training.merge import merge_adapter

        folder = merge_adapter(adapter, out, overwrite=overwrite)
    typer.echo(f"Written to {folder}.")


@command(
    epilog="Example: wedlm export out/full my-wedlm --license apache-2.0 --base-model Qwen/Qwen3-8B --eval eval.json"
)
@with_options
def export(options: ExportOptions) -> None:
    """Make a whole Hub repository of MODEL: weights, code, tokenizer, and a model card with the measured numbers.

    A draft adapter becomes one repository with its base. Before OUT appears, the snippet of the card runs in a clean
    process. docs/publish.md lists the contents.

    With --vllm, OUT gets a plain checkpoint for vLLM, and a drafter for it: docs/vllm.md.
    """
    with refusals(options.debug):
        exported = export_for_vllm(options) if options.vllm else export_repository(options)
    for note in exported.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"Written to {exported.folder}.")
    if exported.url is not None:
        typer.echo(f"Pushed to {exported.url}.")


def export_repository(options: ExportOptions) -> "Exported":
    from wedlm.hub_card.options import CardOptions

    card = CardOptions(
        options.license,
        options.base_model or [],
        options.dataset or [],
        options.language or [],
        options.name,
        options.prompt,
        options.eval or [],
        options.training,
        options.adapter_only,
    )
    check_export(options, card)
    from wedlm.hub_card.export import export

    return export(
        options.model,
        options.out,
        card,
        push=options.push,
        private=options.private,
        overwrite=options.overwrite,
    )


def export_for_vllm(options: ExportOptions) -> "Exported":
    check_export_for_vllm(options)
    from wedlm.for_vllm.vllm_export import export_for_vllm

    return export_for_vllm(options.model, options.out, options.target, overwrite=options.overwrite)


@command(epilog="Example: wedlm adapt Qwen/Qwen3-8B drafts --prompts prompts.jsonl --minutes 60")
@with_options
def adapt(options: AdaptOptions) -> None:
    """Make a draft adapter: MODEL keeps its words, and verified decoding writes several of them per forward.

    MODEL answers prompts, the adapter is trained on the answers, and measured on prompts held out. After a stop, the
    same command continues. docs/adapt.md says what it costs and brings.
    """
    with refusals(options.debug), extra("train"):
        from wedlm.drafts.check import check_adapt, what_is_done
        from wedlm.drafts.settings import AdaptFolders, AdaptSettings

        settings = AdaptSettings(**{field.name: getattr(options, field.name) for field in fields(AdaptSettings)})
        folders = AdaptFolders(options.out.resolve())
        tasks = check_adapt(settings, folders, options.overwrite)
        if os.environ.get("RANK", "0") == "0":  # torch, which knows the processes, is imported later
            typer.echo(what_is_done(settings, tasks))
        from wedlm.drafts.adapt import adapt

        adapt(settings, tasks, folders, options.overwrite)


@command(epilog="Example: wedlm serve tencent/WeDLM-8B-Instruct --dtype bfloat16 --port 8000")
@with_options
def serve(options: ServeOptions) -> None:
    """Serve one model in OpenAI's protocol: chat and completions, streamed or not, many at once.

    All requests are written in one running batch. A request may set its own decoding: docs/serve.md.
    """
    with refusals(options.debug), extra("serve"):
        check_generation(options)
        from wedlm.serving.server import serve

        serve(
            options.model,
            options.host,
            options.port,
            options.api_key,
            tuple(options.cors or ()),
            options.dtype,
            options.device,
            decoding_arguments(options),
            options.max_batch_size,
            options.max_cached_tokens,
            options.max_waiting,
            options.request_timeout,
            options.fixed_shapes,
        )


@command(epilog="Example: wedlm eval --recipe examples/demo/eval.yaml --run-code --limit 20")
@with_options
def eval(options: EvalOptions) -> None:
    """Score MODEL on tasks of lm-eval, and show the score and the speed of each decoding.

    After a stop, the same command continues. docs/evaluate.md describes recipes and tasks of your own.
    """
    with refusals(options.debug), extra("eval"):
        asked = plan_eval(options)
        from wedlm.commands.eval import run_eval

        run_eval(options, asked)


@command(epilog="Example: wedlm tune my-wedlm --data questions.jsonl --max-quality-loss 1%")
@with_options
def tune(options: TuneOptions) -> None:
    """Find the fastest decoding that keeps quality on your own examples, and write it into generation_config.json.

    Every setting answers every example. After a stop, the same command continues.
    """
    with refusals(options.debug), extra("eval"):
        asked = plan_tune(options)
        from wedlm.commands.tune import tune

        tune(options, asked)


if __name__ == "__main__":
    app()
