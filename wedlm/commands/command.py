"""How typer's commands behave here: flags are shown without a value, and a wrong value is refused in one sentence."""

from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

NUMBERS = {int: "a whole number", float: "a number"}


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

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            accepted = None if error.param is None else accepted_by(error.param)
            value = None if accepted is None else value_in(words, error.param.opts)
            if value is None:
                raise
            typer.echo(f"{error.param.opts[0]} {value} is not accepted; pass {accepted}.", err=True)
            raise typer.Exit(2) from error


def accepted_by(param: Any) -> str | None:
    """What an option accepts, in words; None if it accepts any text."""
    if choices := param.type_descriptor.choices:
        *others, last = map(str, choices)
        return f"{', '.join(others)} or {last}"
    kind = next((kind for kind in NUMBERS if kind.__name__ in param.bare_type()), None)
    if kind is None:
        return None
    low, high = param.min, param.max
    limits = f" from {low} to {high}" if high is not None else f", {low} or more" if low is not None else ""
    return NUMBERS[kind] + limits


def value_in(words: list[str], names: list[str]) -> str | None:
    """The value of an option in the words of a command line, or its values if it is given several times."""
    values = []
    for place, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name in names:
            values += [value] if has_value else words[place + 1 : place + 2]
    return ", ".join(values) or None


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
