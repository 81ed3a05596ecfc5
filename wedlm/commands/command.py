"""How commands behave: their help, the sentence that refuses bad input, and tables in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

PIPE_WIDTH = 200  # so that no line of a table is broken


class PlainNames:
    """Leaves out the <bool> that typer shows behind a flag, which takes no value, and shows arguments in capitals."""

    def get_params(self, ctx: typer.Context) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            if param.param_type_name == "argument":
                param.metavar = param.metavar or param.name.upper()
            elif param.is_flag:
                param.metavar = ""
        return params


class Group(PlainNames, TyperGroup):
    """The command `wedlm` itself."""


class Command(PlainNames, TyperCommand):
    """A command of `wedlm`."""

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(param.metavar if param.required else f"[{param.metavar}]" for param in arguments)]


class TrainCommand(Command):
    """`wedlm train`, whose help lists the arguments of a run, which `wedlm.training` reads and typer does not."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:
        own = self.params
        self.params = [*own, *arguments_of_a_run()]
        try:
            super().format_help(ctx, formatter)
        finally:
            self.params = own


def arguments_of_a_run() -> list[Any]:
    """The arguments of this package as options of typer that are only shown, in a panel for each subject."""
    from wedlm.training.data_options import DataOptions, ObjectiveOptions
    from wedlm.training.run_arguments import RunArguments

    shown = []
    for title, options in (("Run", RunArguments), ("Data", DataOptions), ("Objective", ObjectiveOptions)):
        for item in fields(options):
            is_choice = get_origin(item.type) is Literal
            help = typer.Option(
                f"--{item.name}",
                help=item.metadata.get("help"),
                rich_help_panel="LoRA" if item.name.startswith(("lora_", "load_in_")) else title,
                metavar="" if item.type is bool else "|".join(get_args(item.type)) if is_choice else "VALUE",
                show_default=item.default not in (None, False),
            )
            default = Parameter.empty if item.default is MISSING else item.default
            if item.default_factory is not MISSING:
                default = " ".join(item.default_factory())
            kind = Annotated[str, help]
            shown.append(Parameter(item.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    def run(**values: Any) -> None: ...

    run.__signature__ = Signature(shown)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    app = typer.Typer(add_completion=False)
    app.command()(run)
    return [param for param in typer.main.get_command(app).params if param.name != "help"]


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
        typer.echo(sentence_of(error), err=True)
        raise typer.Exit(2) from None


def sentence_of(error: Exception) -> str:
    said = " ".join(str(error).split())
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


def table_console() -> Console:
    """A console for tables; in a pipe or a file it is wide enough to keep their lines whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console
