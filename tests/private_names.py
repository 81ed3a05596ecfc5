"""Finds the private names of other packages that a source file uses."""

import ast
import re
from typing import NamedTuple

PRIVATE = re.compile(r"_(?!_)\w*[A-Za-z]\w*$")  # one underscore at the front; not `_` alone, not `__dunder__`
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}  # documented as public
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}


class Use(NamedTuple):
    line: int
    name: str


def own_names(source: str) -> set[str]:
    """Private names that `source` gives to its own functions, methods, class attributes and `self`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            names.add(node.attr)
    return {name for name in names if PRIVATE.match(name)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_uses(source: str) -> list[Use]:
    """Every private attribute, name in getattr() and its kin, import and keyword of `source` that is not its own.

    `self._name` is its own if the file defines `_name`; `super()._name` is, within an override of that name.
    """
    own = own_names(source)
    uses = []

    def visit(node: ast.AST, function: str | None) -> None:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        names = []
        if isinstance(node, ast.Attribute):
            is_override = node.attr == function and ast.unparse(node.value) == "super()"
            is_own = is_self(node.value) and node.attr in own
            names = [] if is_override or is_own or node.attr in NAMED_TUPLE else [node.attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
            names = [name.value for name in node.args[1:2] if isinstance(name, ast.Constant)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.keyword):
            names = [node.arg or ""]
        uses.extend(Use(node.lineno, name) for name in names if PRIVATE.match(name))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), None)
    return sorted(set(uses))


SET_AT_RUN_TIME = re.compile("_abc_impl|_can_set_\\w+_cached_value")  # on classes, when they are made or used


def overrides(cls: type, package: str) -> set[str]:
    """Private names that `cls`, or a base class of it in `package`, takes over from a base class outside of it."""
    is_ours = {base: base.__module__.partition(".")[0] == package for base in cls.__mro__}
    ours = {name for base in cls.__mro__ if is_ours[base] for name in vars(base)}
    theirs = {name for base in cls.__mro__ if not is_ours[base] for name in vars(base)}
    return {name for name in ours & theirs if PRIVATE.match(name) and not SET_AT_RUN_TIME.fullmatch(name)}
