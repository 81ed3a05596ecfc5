"""The `wedlm` command. Each subcommand is a thin function that imports what it needs when it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from wedlm.hub_card.demo import DEMO_FOLDER
from wedlm.settings import Debug, Settings, with_settings

app = typer.Typer(
    help="WeDLM, a language model that decodes several tokens per forward.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def commands() -> None:  # with a callback, a single command keeps its name
    pass


def refuse(sentence: object) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


@contextmanager
def refusals(debug: bool) -> Iterator[None]:
    """Bad input becomes one sentence and exit code 2, Ctrl-C exit code 130; with `debug` the traceback is shown."""
    try:
        yield
    except ValueError as error:
        if debug:
            raise
        refuse(" ".join(str(error).split()))
    except KeyboardInterrupt:
        if debug:
            raise
        raise typer.Exit(130) from None


Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]


@app.command(epilog='Example: wedlm generate "Count by 3 from 3 to 30."')
@with_settings
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")],
    settings: Settings,
    raw: Raw = False,
) -> None:
    """Answer PROMPT, written as it is decoded. A pipe gets the text alone."""
    with refusals(settings.debug):
        from wedlm.generate import generate

        generate(prompt, settings, raw)


@app.command(epilog="Example: wedlm chat --decoding streaming")
@with_settings
def chat(settings: Settings) -> None:
    """Talk in turns; what was said stays in the cache. /help lists the commands."""
    with refusals(settings.debug):
        from wedlm.chat import chat

        chat(settings)


@app.command(epilog='Example: wedlm compare "Count by 3 from 3 to 30."')
@with_settings
def compare(
    prompts: Annotated[list[str], typer.Argument(help="What to answer; one or several.", metavar="PROMPT...")],
    settings: Settings,
    raw: Raw = False,
) -> None:
    """Answer each PROMPT token by token and in parallel, side by side, and count.

    With --decoding only that one is compared with autoregressive decoding.
    """
    with refusals(settings.debug):
        from wedlm.compare import compare

        compare(prompts, settings, raw)


@app.command(epilog='Example: wedlm trace "Count by 3 from 3 to 30." --decoding verified --html trace.html')
@with_settings
def trace(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")],
    settings: Settings,
    raw: Raw = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page that plays the decoding back, over what FILE holds.", metavar="FILE"),
    ] = None,
) -> None:
    """Answer PROMPT and show each forward: the text that became final, a bar, and the window behind it.

    A dot is an open slot; colours tell how long ago a slot was filled. Verified decoding has drafts there, and says
    how many of the last ones were accepted and which was refuted.
    """
    with refusals(settings.debug):
        from wedlm.trace import trace

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
        from wedlm.info import info

        info(model)


@app.command(epilog="Example: wedlm convert Qwen/Qwen3-8B qwen3-8b-wedlm")
def convert(
    source: Annotated[str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.")],
    out: Annotated[str, typer.Argument(help="The folder that the result becomes.")],
    to_autoregressive: Annotated[
        bool, typer.Option("--to-autoregressive", help="From WeDLM to a plain Qwen2 or Qwen3 checkpoint.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that OUT holds.")] = False,
) -> None:
    """Make a WeDLM checkpoint from a Qwen2, Qwen2.5, Qwen3 or released WeDLM checkpoint, or go back."""
    from wedlm import convert_to_autoregressive, convert_to_wedlm
    from wedlm.modeling_wedlm.conversion_error import ConversionError

    try:
        result = (convert_to_autoregressive if to_autoregressive else convert_to_wedlm)(
            source, out, overwrite=overwrite
        )
    except ConversionError as error:
        refuse(error)
    except OSError as error:
        refuse(f"{source} cannot be read ({error}); allow it, or copy it to a place where you may.")
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
) -> None:
    """Train a WeDLM checkpoint, or a Qwen checkpoint that is converted first: the whole model, LoRA or QLoRA.

    Behind CONFIG any argument may follow as --name value; it overrides the file. docs/train.md lists them.
    """
    from wedlm.modeling_wedlm.conversion_error import ConversionError

    try:
        from wedlm.training.errors import TrainingError
        from wedlm.training.train import train
    except ImportError as error:
        refuse(f'Training needs more packages ({error}); pip install "wedlm[train]".')
    try:
        train([config, *context.args])
    except (ConversionError, TrainingError) as error:
        refuse(error)


@app.command(epilog="Example: wedlm merge out/lora merged")
def merge(
    adapter: Annotated[str, typer.Argument(help="The folder of an adapter of PEFT.")],
    out: Annotated[str, typer.Argument(help="The folder that the result becomes.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that OUT holds.")] = False,
) -> None:
    """Fold an adapter into the checkpoint it was trained on: one whole checkpoint, with its code."""
    from wedlm.modeling_wedlm.conversion_error import ConversionError
    from wedlm.training.merge import merge_adapter

    try:
        folder = merge_adapter(adapter, out, overwrite=overwrite)
    except ConversionError as error:
        refuse(error)
    typer.echo(f"Written to {folder}.")


@app.command(epilog="Example: wedlm serve tencent/WeDLM-8B-Instruct --dtype bfloat16 --port 8000")
def serve(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: a folder, or a name on the Hub.", show_default="the demo checkpoint")
    ] = str(DEMO_FOLDER),
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    dtype: Annotated[str, typer.Option(help="Such as bfloat16; auto leaves the weights as they are.")] = "auto",
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; otherwise the GPU, if any.")] = None,
    decoding: Annotated[str | None, typer.Option(help="How to decode where a request does not say.")] = None,
    window_size: Annotated[int | None, typer.Option(help="Slots behind the committed text.")] = None,
    entropy_threshold: Annotated[
        str | None, typer.Option(help="In nats; slots with less are filled. none fills one slot per forward.")
    ] = None,
    distance_penalty: Annotated[float | None, typer.Option(help="Added to the entropy for each slot.")] = None,
) -> None:
    """Serve one model in OpenAI's protocol, on transformers' own server: chat and completions, streamed or not.

    One request at a time is answered; others wait in line. docs/serve.md says what a request may ask for.
    """
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        refuse('Serving needs more packages (fastapi, uvicorn, openai); pip install "wedlm[serve]".')
    from wedlm.serve import serve

    given = {
        "decoding": decoding,
        "window_size": window_size,
        "entropy_threshold": entropy_threshold,
        "distance_penalty": distance_penalty,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    try:
        serve(model, host, port, dtype, device, settings)
    except ValueError as error:
        refuse(" ".join(str(error).split()))


if __name__ == "__main__":
    app()
