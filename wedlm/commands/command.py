"""What makes a function a command: its help, --debug, the sentence that refuses bad input, and tables in a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature, signature
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
            default = item.default if item.default_factory is MISSING else " ".join(item.default_factory())
            shown.append(option_of(item.name, Annotated[str, help], default))

    app = typer.Typer(add_completion=False)
    app.command()(with_parameters(lambda **values: None, shown))
    return [param for param in typer.main.get_command(app).params if param.name != "help"]


app = typer.Typer(
    cls=Group,
    help="Generate several tokens per forward pass, with any causal language model or a WeDLM. MODEL is the first "
    "argument of every command; where it may be left out, that means the demo checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def command(example: str, extra: str | None = None, cls: type[Command] = Command, **settings: Any) -> Callable:
    """Makes a function a command of `app` with an example in its help.

    The command also has --debug, and an option for each field of the dataclass that is the type of its parameter
    `options`. Its bad input is refused in one sentence, and so is a missing module of one of the package's extras.
    """

    def register(function: Callable) -> Callable:
        kind = function.__annotations__.get("options")
        shared = fields(kind) if kind else ()
        parameters = []
        for name, parameter in signature(function).parameters.items():
            if name == "options":
                parameters += [option_of(field.name, field.type, field.default) for field in shared]
            else:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

        @wraps(function)
        def run(debug: bool, **values: Any) -> None:
            with refusals(debug, extra):
                if kind is not None:
                    values["options"] = kind(**{field.name: values.pop(field.name) for field in shared})
                function(**values)

        run = with_parameters(run, [*parameters, DEBUG])
        app.command(cls=cls, epilog=f"Example: wedlm {example}", **settings)(run)
        return run

    return register


def with_parameters(function: Callable, parameters: list[Parameter]) -> Callable:
    """The function, of which typer reads these parameters."""
    function.__signature__ = Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def option_of(name: str, annotation: Any, default: Any) -> Parameter:
    default = Parameter.empty if default is MISSING else default  # as a dataclass says that there is none
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


DEBUG = option_of("debug", Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")], False)


@contextmanager
def refusals(debug: bool, extra: str | None) -> Iterator[None]:
    """Turns bad input into one sentence and exit code 2; with `debug` the traceback is shown."""
    try:
        yield
        sys.stdout.flush()  # a closed pipe is noticed here, and not when the process ends
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError, MemoryError, ImportError) as error:
        is_ours = isinstance(error, RuntimeError) and "memory" not in str(error)
        if debug or is_ours or isinstance(error, ImportError) and extra is None:
            raise
        typer.echo(sentence_of(error, extra), err=True)
        raise typer.Exit(2) from None


def sentence_of(error: Exception, extra: str | None) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, ImportError):
        return (
            f"A package is missing ({said}); install wedlm with its extra {extra!r}, in a clone of it by "
            f'pip install -e ".[{extra}]".'
        )
    if isinstance(error, RuntimeError | MemoryError):
        return f"There is not enough memory ({said}); ask for fewer tokens, or choose another --dtype or --device."
    if isinstance(error, OSError):
        return f"A file cannot be read or written ({said}); allow it, or choose another place."
    return said


def table_console() -> Console:
    """A console for tables; in a pipe or a file it is wide enough to keep their lines whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console
