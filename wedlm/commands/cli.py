"""The `wedlm` command: a thin function for each subcommand, which imports what it needs when it is called."""

import io
import logging
import os
import shlex
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.command import TrainCommand, app, command
from wedlm.commands.eval import eval
from wedlm.commands.shared_options import (
    DEMO,
    MODEL_HELP,
    MOVED,
    DecodingOptions,
    Device,
    Dtype,
    GenerationOptions,
    Model,
    OverwriteCheckpoint,
    Source,
    check_call,
    check_out_file,
    model_and_prompts,
    option,
)
from wedlm.commands.tune import tune
from wedlm.drafts.settings import AdaptSettings


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
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "30")  # seconds, so that bars add few lines to a file
    # What packages say to programmers: kernels for 4-bit weights that PEFT looks for, and names that PEFT takes.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


WORDS_HELP = (
    "MODEL is a checkpoint: a folder, or a name on the Hub; left out, the demo checkpoint. PROMPT is the text to "
    "answer; - reads it from standard input. Put -- before a text that begins with -."
)
Words = Annotated[list[str], typer.Argument(help=WORDS_HELP, metavar="[MODEL] PROMPT")]
Raw = Annotated[bool, option("Continue the text without the chat template.", "--raw")]


@command('generate "Count by 5 from 10 to 60."')
def generate(words: Words, options: GenerationOptions, raw: Raw = False) -> None:
    """Answer PROMPT and print the text while it is generated. Only the text goes to standard output."""
    options, (prompt,) = model_and_prompts(words, options, most=1)
    check_call(options.model, options.arguments())
    from wedlm.commands.answering import generate

    generate(prompt, options, raw)


@command("chat --decoding streaming")
def chat(
    options: GenerationOptions,
    checkpoint: Annotated[str | None, typer.Argument(help=MODEL_HELP, metavar="MODEL", show_default=DEMO)] = None,
) -> None:
    """Chat with MODEL; earlier turns stay in the KV cache. In the chat, /help lists the commands."""
    if checkpoint is not None:
        options = replace(options, model=checkpoint)
    elif options.model != GenerationOptions.model:
        typer.echo(MOVED, err=True)
    check_call(options.model, options.arguments())
    from wedlm.commands.chat import chat

    chat(options)


@command('compare "Count by 5 from 10 to 60."')
def compare(
    words: Annotated[list[str], typer.Argument(help=WORDS_HELP, metavar="[MODEL] PROMPT...")],
    options: GenerationOptions,
    raw: Raw = False,
) -> None:
    """Answer each PROMPT with several decodings, and show texts, tokens, forward passes and seconds side by side.

    With --decoding, compare only that decoding with autoregressive decoding.
    """
    options, prompts = model_and_prompts(words, options, most=None)
    check_call(options.model, options.arguments())
    from wedlm.commands.compare import compare

    compare(prompts, options, raw)


@command('trace "Count by 5 from 10 to 60." --html trace.html')
def trace(
    words: Words,
    options: GenerationOptions,
    raw: Raw = False,
    html: Annotated[
        Path | None,
        option(
            "Also write a web page where the decoding races token by token decoding; FILE is overwritten. This "
            "answers the prompt several times more, to measure the times.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Answer PROMPT and show each forward pass: the text that became final, a bar, and the window after it.

    A dot is an open slot; the colour of a filled slot shows how long ago it was filled.

    Verified decoding shows drafts in open slots, the number of accepted drafts, and the draft that was rejected.
    """
    if html is not None:
        check_out_file("--html", html, overwrite=True)
    options, (prompt,) = model_and_prompts(words, options, most=1)
    check_call(options.model, options.arguments())
    from wedlm.commands.trace import trace

    trace(prompt, options, raw, html)


@command("info tencent/WeDLM-8B-Instruct")
def info(model: Model = str(DEMO_FOLDER)) -> None:
    """Show the kind, size, memory and decodings of MODEL without loading its weights."""
    from wedlm.commands.info import info

    info(model)


@command("convert Qwen/Qwen3-8B qwen3-8b-wedlm")
def convert(
    source: Source,
    out: Annotated[str, typer.Argument(help="The new folder for the result.")],
    to_autoregressive: Annotated[
        bool, option("Convert a WeDLM to a stock Llama, Mistral or Qwen checkpoint.", "--to-autoregressive")
    ] = False,
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Make a WeDLM checkpoint from one of Qwen2, Qwen3, Llama, Mistral or a released WeDLM, or convert it back."""
    from wedlm.checkpoints.new_folder import check_apart, check_out
    from wedlm.checkpoints.resolve import checkpoint_folder, read_config

    folder = checkpoint_folder(source, with_weights=False)
    read_config(source, folder)
    check_apart(check_out(out, overwrite), folder)
    from wedlm import convert_to_autoregressive, convert_to_wedlm

    convert = convert_to_autoregressive if to_autoregressive else convert_to_wedlm
    result = convert(source, out, overwrite=overwrite)
    for note in result.notes:
        typer.echo(f"Note: {note}")
    mask = "no MASK token" if result.mask_token_id is None else f"MASK is token {result.mask_token_id}"
    typer.echo(f"Written to {result.folder} ({mask}).")
    if not to_autoregressive:
        typer.echo(f'Next: wedlm generate {shlex.quote(str(result.folder))} "Why is the sky blue?"')


@command(
    "train lora.yaml --learning_rate 1e-4",
    extra="train",
    cls=TrainCommand,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Argument(help="A YAML file of arguments; training/configs has examples.", show_default=False)
    ] = None,
) -> None:
    """Train a WeDLM checkpoint, or a stock one that is converted first: the whole model, LoRA or QLoRA.

    CONFIG has lines such as `model: NAME`. Any argument may follow it, or stand in its place, as --name value.

    All arguments of transformers' TrainingArguments are taken too, such as --output_dir, --learning_rate,
    --num_train_epochs and --resume_from_checkpoint true: https://huggingface.co/docs/transformers/main_classes/trainer
    """
    if config is not None and not config.startswith("--"):
        from wedlm.training.run_arguments import read_fields

        read_fields(config)  # a wrong name is refused before torch is imported
    from wedlm.training.train import train

    train(context.args if config is None else [config, *context.args])


@command("merge out/lora merged", extra="train")
def merge(
    adapter: Annotated[str, typer.Argument(help="The folder of a PEFT adapter.")],
    out: Annotated[str, typer.Argument(help="The new folder for the result.")],
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Merge a LoRA into the checkpoint that it was trained on, and write a complete checkpoint with its code."""
    from wedlm.training.merge import merge_adapter

    folder = merge_adapter(adapter, out, overwrite=overwrite)
    typer.echo(f"Written to {folder}.")


@command("export out/full my-wedlm --license apache-2.0 --base-model Qwen/Qwen3-8B --eval eval.json")
def export(
    model: Annotated[str | None, typer.Argument(help="A folder, or a name on the Hub.", show_default=False)] = None,
    out: Annotated[str | None, typer.Argument(help="The new folder for the repository.", show_default=False)] = None,
    license: Annotated[
        str | None, option("The licence, such as apache-2.0; needed if MODEL's README.md has none.")
    ] = None,
    base_model: Annotated[
        list[str] | None, option("A model on the Hub that MODEL was made from; may be given again.")
    ] = None,
    dataset: Annotated[
        list[str] | None, option("A dataset on the Hub that MODEL was trained on; may be given again.")
    ] = None,
    language: Annotated[list[str] | None, option("A language code such as en; may be given again.")] = None,
    name: Annotated[str | None, option("The title of the card; by default the name of REPO or OUT.")] = None,
    prompt: Annotated[str | None, option("The prompt of the card's snippet.")] = None,
    eval: Annotated[
        list[Path] | None, option("The file of `wedlm eval MODEL`; may be given again.", metavar="FILE")
    ] = None,
    training: Annotated[
        Path | None, option("The report of `wedlm train`; by default MODEL's training_report.json.", metavar="FILE")
    ] = None,
    adapter_only: Annotated[bool, option("Leave out the base of the draft adapter MODEL.", "--adapter-only")] = False,
    vllm: Annotated[
        bool, option("Write a checkpoint for vLLM and its drafter instead of a repository.", "--vllm")
    ] = False,
    strategy: Annotated[
        Path | None,
        option(
            "Instead of OUT: write a custom_generate repository with verified decoding, and with MODEL if given.",
            metavar="OUT",
        ),
    ] = None,
    target: Annotated[str | None, option("With --vllm: another model that MODEL drafts for.", metavar="NAME")] = None,
    push: Annotated[str | None, option("Upload OUT to the Hub as OWNER/NAME.", metavar="REPO")] = None,
    private: Annotated[bool, option("Make REPO private.", "--private")] = False,
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Make a complete Hub repository of MODEL: weights, code, tokenizer, and a model card with measured numbers.

    A draft adapter and its base become one repository. Before OUT appears, the snippet of the card runs in a clean
    process. docs/publish.md lists the contents.

    With --vllm, OUT gets a plain checkpoint for vLLM, and a drafter for it: docs/vllm.md. With --strategy OUT,
    OUT is a repository for `custom_generate="OUT"` of any stock model, and MODEL may be left out.
    """
    if strategy is not None:
        if out is not None or vllm:
            raise ValueError("--strategy OUT names the folder itself; leave out the second argument and --vllm.")
        from wedlm.hub_card.export_strategy import export_strategy

        typer.echo(f"Written to {export_strategy(strategy, model, overwrite)}.")
        return
    if model is None or out is None:
        raise ValueError("MODEL or OUT is missing; give both, as in `wedlm export MODEL OUT`, or --strategy OUT.")
    from wedlm.checkpoints.new_folder import check_out
    from wedlm.checkpoints.resolve import checkpoint_folder, checkpoint_of

    check_out(out, overwrite)
    if push is None:  # else the login is checked first
        checkpoint_folder(checkpoint_of(model), with_weights=False)
    if vllm:
        repository = {
            "license": license, "base-model": base_model, "dataset": dataset, "language": language, "name": name,
            "prompt": prompt, "eval": eval, "training": training, "adapter-only": adapter_only, "push": push,
            "private": private,
        }  # fmt: skip
        for option in filter(repository.get, repository):
            raise ValueError(f"--{option} is about a repository, and --vllm writes none; leave it out.")
        from wedlm.for_vllm.vllm_export import export_for_vllm

        exported = export_for_vllm(model, out, target, overwrite=overwrite)
    else:
        if target is not None:
            raise ValueError(
                "--target names the model that MODEL drafts for in vLLM; pass --vllm with it, or leave it out."
            )
        from wedlm.hub_card.export import export
        from wedlm.hub_card.metadata import CardOptions

        lists = base_model or [], dataset or [], language or []
        card = CardOptions(license, *lists, name, prompt, eval or [], training, adapter_only)
        exported = export(model, out, card, push=push, private=private, overwrite=overwrite)
    for note in exported.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"Written to {exported.folder}.")
    if exported.url is not None:
        typer.echo(f"Pushed to {exported.url}.")


@command("adapt Qwen/Qwen3-8B drafts --prompts prompts.jsonl --minutes 60", extra="train")
def adapt(
    options: AdaptSettings,
    out: Annotated[Path, typer.Argument(help="The new folder for the adapter; OUT.work keeps a stopped run.")],
    overwrite: Annotated[bool, option("Replace OUT if it is an adapter.", "--overwrite")] = False,
) -> None:
    """Train a draft adapter for MODEL: a LoRA that only proposes drafts, so that the output stays the same.

    MODEL answers prompts, the adapter is trained on the answers, and measured on prompts held out. After a stop, the
    same command continues. docs/adapt.md says what it costs and brings.
    """
    from wedlm.drafts.check import check_adapt, what_is_done

    out = out.resolve()
    tasks = check_adapt(options, out, overwrite)
    if os.environ.get("RANK", "0") == "0":  # torch, which knows the processes, is imported later
        typer.echo(what_is_done(options, tasks))
    from wedlm.drafts.adapt import adapt

    adapt(options, tasks, out, overwrite)


@command("serve tencent/WeDLM-8B-Instruct --dtype bfloat16 --port 8000", extra="serve")
def serve(
    model: Model = str(DEMO_FOLDER),
    host: Annotated[str, option("The address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, option("The port to listen on; 0 chooses a free port.", min=0, max=65535)] = 8000,
    dtype: Dtype = "auto",
    device: Device = None,
    max_batch_size: Annotated[int, option("The most requests that generate at the same time.", min=1)] = 64,
    max_cached_tokens: Annotated[
        int | None,
        option("The most tokens whose keys and values are in memory; by default half of the free memory.", min=1),
    ] = None,
    max_waiting: Annotated[int, option("The most requests that wait; the next one gets status 429.", min=0)] = 256,
    request_timeout: Annotated[
        float, option("The seconds after which a request ends with status 504; 0 for no limit.", min=0)
    ] = 600,
    fixed_shapes: Annotated[
        bool, option("Give equal requests the same text in every dtype; slower for many requests.", "--fixed-shapes")
    ] = False,
    api_key: Annotated[
        str | None, option("The key that requests must have.", envvar="WEDLM_API_KEY", show_envvar=True)
    ] = None,
    cors: Annotated[
        list[str] | None,
        option("An origin whose web pages may send requests, or *; may be given again.", metavar="ORIGIN"),
    ] = None,
    *,
    options: DecodingOptions,
) -> None:
    """Run an OpenAI-compatible server for one model: chat and completions, streamed or not, many at once.

    All requests share one running batch. A request may set its own decoding: docs/serve.md.
    """
    check_call(model, options.arguments())
    from wedlm.serving.server import serve

    serve(
        model,
        host,
        port,
        api_key,
        tuple(cors or ()),
        dtype,
        device,
        options.arguments(),
        max_batch_size,
        max_cached_tokens,
        max_waiting,
        request_timeout,
        fixed_shapes,
    )


command("eval --recipe examples/demo/eval.yaml --run-code --limit 20", extra="eval")(eval)
command("tune my-wedlm --data questions.jsonl --max-quality-loss 1%", extra="eval")(tune)

if __name__ == "__main__":
    app()
