"""The `wedlm` command. Each subcommand is a thin function that imports what it needs when it runs."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.settings import (
    Debug,
    Decoding,
    Device,
    DistancePenalty,
    Dtype,
    EntropyThreshold,
    Settings,
    WindowSize,
    option,
    with_settings,
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
            stream.reconfigure(errors="replace")  # of a terminal that knows fewer letters


def refuse(sentence: object) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


@contextmanager
def refusals(debug: bool) -> Iterator[None]:
    """Bad input becomes one sentence and exit code 2; with `debug` the traceback is shown."""
    try:
        yield
        sys.stdout.flush()  # here a pipe that was closed is no surprise
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


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that OUT holds.")]
PROMPT_HELP = "What to answer; - reads it from standard input. Before one that begins with - put -- alone."
Prompt = Annotated[str, typer.Argument(help=PROMPT_HELP, metavar="PROMPT")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]


@app.command(epilog='Example: wedlm generate "Count by 5 from 10 to 60."')
@with_settings
def generate(
    prompt: Prompt,
    settings: Settings,
    raw: Raw = False,
) -> None:
    """Answer PROMPT, written as it is decoded. A pipe gets the text alone."""
    with refusals(settings.debug):
        from wedlm.commands.generate import generate

        generate(prompt, settings, raw)


@app.command(epilog="Example: wedlm chat --decoding verified")
@with_settings
def chat(settings: Settings) -> None:
    """Talk in turns; what was said stays in the cache. /help lists the commands."""
    with refusals(settings.debug):
        from wedlm.commands.chat import chat

        chat(settings)


@app.command(epilog='Example: wedlm compare "Count by 5 from 10 to 60."')
@with_settings
def compare(
    prompts: Annotated[list[str], typer.Argument(help=PROMPT_HELP, metavar="PROMPT...")],
    settings: Settings,
    raw: Raw = False,
) -> None:
    """Answer each PROMPT token by token and in parallel, side by side, and count.

    With --decoding only that one is compared with autoregressive decoding.
    """
    with refusals(settings.debug):
        from wedlm.commands.compare import compare

        compare(prompts, settings, raw)


@app.command(epilog='Example: wedlm trace "Count by 5 from 10 to 60." --decoding verified --html trace.html')
@with_settings
def trace(
    prompt: Prompt,
    settings: Settings,
    raw: Raw = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page that plays the decoding back, over what FILE holds.", metavar="FILE"),
    ] = None,
) -> None:
    """Answer PROMPT and show each forward: the text that became final, a bar, and the window behind it.

    A dot is an open slot; colours tell how long ago a slot was filled.

    Verified decoding has drafts there, and says how many of the last ones were accepted, and which was refuted.
    """
    with refusals(settings.debug):
        from wedlm.commands.trace import trace

        trace(prompt, settings, raw, html)


@app.command(epilog="Example: wedlm info tencent/WeDLM-8B-Instruct")
def info(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.", show_default="the demo checkpoint")
    ] = str(DEMO_FOLDER),
    debug: Debug = False,
) -> None:
    """Show what MODEL is, the memory it takes and what it can do, without loading its weights."""
    with refusals(debug):
        from wedlm.commands.info import info

        info(model)


@app.command(epilog="Example: wedlm convert Qwen/Qwen3-8B qwen3-8b-wedlm")
def convert(
    source: Annotated[str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.")],
    out: Annotated[str, typer.Argument(help="The folder that the result becomes.")],
    to_autoregressive: Annotated[
        bool, typer.Option("--to-autoregressive", help="From WeDLM to a plain Qwen2 or Qwen3 checkpoint.")
    ] = False,
    overwrite: Overwrite = False,
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
    overwrite: Overwrite = False,
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
def export(
    model: Annotated[str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.")],
    out: Annotated[str, typer.Argument(help="The folder that the repository becomes.")],
    license: Annotated[
        str | None,
        typer.Option(help="As the Hub writes it, such as apache-2.0; needed if MODEL's README.md has none."),
    ] = None,
    base_model: Annotated[
        list[str] | None, typer.Option(help="What MODEL was made from, on the Hub; may be given again.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="What it was trained on, on the Hub; may be given again.")
    ] = None,
    language: Annotated[list[str] | None, typer.Option(help="Such as en; may be given again.")] = None,
    name: Annotated[str | None, typer.Option(help="The title of the card; otherwise the name of REPO or OUT.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What the card's snippet asks.")] = None,
    eval: Annotated[
        list[Path] | None, typer.Option(help="What `wedlm eval MODEL` wrote; may be given again.", metavar="FILE")
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(help="What `wedlm train` wrote; otherwise MODEL's training_report.json.", metavar="FILE"),
    ] = None,
    push: Annotated[str | None, typer.Option(help="Upload it, as OWNER/NAME.", metavar="REPO")] = None,
    private: Annotated[bool, typer.Option("--private", help="Let only REPO's owner see it.")] = False,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Make a whole Hub repository of MODEL: weights, code, tokenizer, and a card with what was measured.

    It is done when the card's snippet has run in a process that has no wedlm. docs/publish.md says what goes in.
    """
    with refusals(debug):
        from wedlm.hub_card.export import CardOptions, export

        options = CardOptions(
            license, base_model or [], dataset or [], language or [], name, prompt, eval or [], training
        )
        exported = export(model, out, options, push=push, private=private, overwrite=overwrite)
    for note in exported.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"Written to {exported.folder}.")
    if exported.url is not None:
        typer.echo(f"Pushed to {exported.url}.")


@app.command(epilog="Example: wedlm serve tencent/WeDLM-8B-Instruct --dtype bfloat16 --port 8000")
def serve(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.", show_default="the demo checkpoint")
    ] = str(DEMO_FOLDER),
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    dtype: Dtype = "auto",
    device: Device = None,
    decoding: Decoding = None,
    window_size: WindowSize = None,
    entropy_threshold: EntropyThreshold = None,
    distance_penalty: DistancePenalty = None,
    debug: Debug = False,
) -> None:
    """Serve one model in OpenAI's protocol, on transformers' own server: chat and completions, streamed or not.

    One request at a time is answered; others wait in line. A request may ask for another decoding: docs/serve.md.
    """
    given = {
        "decoding": decoding,
        "window_size": window_size,
        "entropy_threshold": entropy_threshold,
        "distance_penalty": distance_penalty,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    with refusals(debug), extra("serve"):
        from wedlm.serving.server import serve

        serve(model, host, port, dtype, device, settings)


@app.command(epilog="Example: wedlm eval --recipe demo --run-code --limit 20")
def eval(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.", show_default="the demo checkpoint")
    ] = str(DEMO_FOLDER),
    tasks: Annotated[str, typer.Option(help="Tasks of lm-eval, or of your folder, with commas between.")] = "",
    recipe: Annotated[
        str | None, typer.Option(help="Tasks, shots and settings together: table1-base, speed, ... or a YAML file.")
    ] = None,
    include_path: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with YAML files of tasks; may be given again.", metavar="FOLDER"),
    ] = None,
    decoding: Annotated[
        list[str] | None, option("streaming, verified, blockwise or autoregressive; give several to compare them.")
    ] = None,
    window_size: Annotated[list[int] | None, option("Slots behind the committed text; may be given again.")] = None,
    entropy_threshold: Annotated[
        list[str] | None, option("In nats, or none; may be given again, and each is tried.")
    ] = None,
    distance_penalty: Annotated[list[float] | None, option("Added to the entropy for each slot of distance.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Examples in front of each question.")] = None,
    limit: Annotated[int | None, typer.Option(help="The first so many questions of each task only.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Questions that are answered at once.  [default: 8]")] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Ask as in a chat; for checkpoints that are tuned for it.")
    ] = False,
    system_instruction: Annotated[str | None, typer.Option(help="What the system says in front.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="The most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Above 0 tokens are drawn.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of examples in front and of draws.  [default: 1234]")] = None,
    metadata: Annotated[
        str | None, typer.Option(help="JSON that tasks may read; the demo's read num_examples and seed.")
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Allow tasks that run what the model writes, in a sandbox.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The file that gets every number.", metavar="FILE")] = Path("eval.json"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Score MODEL on tasks of lm-eval, each score beside the speed it was had at; several decodings side by side.

    Stopped, the same command goes on where it was. docs/evaluate.md describes tasks of your own and the recipes.
    """
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
    with refusals(debug), extra("eval"):
        from wedlm.commands.evaluate import Asked, run_eval

        run_eval(
            model,
            Asked(
                [name for name in tasks.replace(" ", "").split(",") if name],
                recipe,
                include_path or [],
                {name: value for name, value in given.items() if value is not None},
                decoding or [],
                window_size or [],
                entropy_threshold or [],
                distance_penalty or [],
                metadata,
            ),
            out,
            overwrite,
            dtype,
            device,
        )


@app.command(epilog="Example: wedlm tune my-wedlm --data questions.jsonl --max-quality-loss 1%")
def tune(
    model: Annotated[Path, typer.Argument(help="The folder of a WeDLM checkpoint.")],
    data: Annotated[Path, typer.Option(help="JSON Lines: prompt and answer, or messages.", metavar="FILE")],
    max_quality_loss: Annotated[
        str, typer.Option(help="How many of the answers may be lost against autoregressive decoding.")
    ] = "1%",
    measure: Annotated[
        str | None,
        typer.Option(
            help="When an answer is right: exact, contains, last-number, or agreement with the autoregressive text.",
            show_default="exact, without answers agreement",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.")] = 256,
    out: Annotated[Path, typer.Option(help="The file that gets every number.", metavar="FILE")] = Path("tune.json"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Leave generation_config.json as it is.")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Find the fastest decoding that keeps quality on your own examples, and write it into generation_config.json.

    Every setting answers every example, in turns. Stopped, the same command goes on where it was.
    """
    with refusals(debug), extra("eval"):
        from wedlm.commands.tune import Tuning, tune

        tune(Tuning(model, data, max_quality_loss, measure, max_new_tokens, out, overwrite, dry_run, dtype, device))


if __name__ == "__main__":
    app()
