"""The import graph of the package, read from its source files without importing them."""

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from helpers import REPOSITORY

Graph = dict[str, set[str]]


def constant(file: Path, name: str):
    """The literal that `name` is assigned at the top level of `file`."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    raise LookupError(f"{file} assigns no {name}.")


FOLDERS = constant(REPOSITORY / "setup.py", "FOLDERS")
PUBLIC_NAMES = constant(REPOSITORY / "wedlm" / "__init__.py", "PUBLIC_NAMES")
SUBPACKAGES = [name for name in FOLDERS if name != "wedlm"]  # each may import only those before it


def source_files() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        name if path.stem == "__init__" else f"{name}.{path.stem}": path
        for name, folder in FOLDERS.items()
        for path in sorted((REPOSITORY / folder).glob("*.py"))
    }


def imported_names(source: str) -> set[str]:
    """All that `source` imports, in functions too; `from a import b` gives `a.b`, since `b` may be a module."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def resolve(name: str, modules: Iterable[str], public_names: dict[str, str]) -> str | None:
    """The module of the package that an imported name stands for; a public name stands for where it is defined."""
    parent, _, last = name.rpartition(".")
    if parent == "wedlm" and last in public_names:
        return public_names[last]
    return next((module for module in (name, parent) if module in modules), None)


def import_graph(sources: dict[str, str], public_names: dict[str, str]) -> Graph:
    """Which modules each module imports, of those in `sources` (a module's source text by its dotted name)."""
    graph = {}
    for module, source in sources.items():
        targets = {resolve(name, sources, public_names) for name in imported_names(source)}
        graph[module] = targets - {module, None}
    return graph


def subpackage_of(module: str) -> str:
    """`wedlm.<subpackage>` of a module, or `wedlm` for those of `wedlm/*.py`."""
    return next((name for name in SUBPACKAGES if f"{module}.".startswith(f"{name}.")), "wedlm")


def circle(graph: Graph) -> list[str]:
    """One circle of the graph, its first node repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def against_the_order(graph: Graph, order: list[str]) -> set[tuple[str, str]]:
    """The imports from one subpackage to another that do not lead from a later one of `order` to an earlier one."""
    place = {name: number for number, name in enumerate(order)}
    arrows = {(node, target) for node in graph for target in graph[node]}
    between = {(subpackage_of(node), subpackage_of(target)): (node, target) for node, target in arrows}
    return {arrow for (one, other), arrow in between.items() if one != other and place[other] > place[one]}


def lazy_imports(source: str) -> set[str]:
    """The names that are imported inside of functions only."""
    tree = ast.parse(source)
    at_the_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imported_names(source) - imported_names(ast.unparse(ast.Module(at_the_top, [])))
