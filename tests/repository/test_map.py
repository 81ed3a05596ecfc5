"""The package's import graph is the one that setup.py and the map in CONTRIBUTING.md state."""

import re

import pytest
from helpers import REPOSITORY
from import_graph import (
    FOLDERS,
    PUBLIC_NAMES,
    SUBPACKAGES,
    against_the_order,
    circle,
    import_graph,
    imported_names,
    lazy_imports,
    resolve,
    source_files,
    subpackage_of,
)

SOURCES = {module: path.read_text(encoding="utf-8") for module, path in source_files().items()}
GRAPH = import_graph(SOURCES, PUBLIC_NAMES)
COMMANDS = "wedlm.commands"


def test_every_source_file_is_in_a_subpackage():
    on_disk = {path for folder in FOLDERS.values() for path in (REPOSITORY / folder).rglob("*.py")}
    assert set(source_files().values()) == on_disk
    assert all(GRAPH[module] for module in (f"{COMMANDS}.cli", "wedlm.generation.generation_wedlm")), "nothing is read"


def test_subpackages_import_only_those_before_them():
    """A public name (`from wedlm import WeDLMTrainer`) counts as an import of the subpackage that defines it.

    `wedlm/*.py` imports from all, and nobody imports anything else from it.
    """
    assert against_the_order(GRAPH, [*SUBPACKAGES, "wedlm"]) == set()


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_files_of_a_subpackage_import_each_other_in_no_circle(name):
    inside = {module for module in GRAPH if subpackage_of(module) == name}
    assert circle({module: GRAPH[module] & inside for module in inside}) == []


def test_no_command_imports_another():
    """The commands are the files that cli.py imports when one of them is called; what it imports at once is shared."""
    called = {resolve(name, SOURCES, PUBLIC_NAMES) for name in lazy_imports(SOURCES[f"{COMMANDS}.cli"])}
    commands = {module for module in called if module is not None and subpackage_of(module) == COMMANDS}
    commands -= {f"{COMMANDS}.answering"}  # which several commands share
    assert len(commands) >= 4
    assert {command: GRAPH[command] & commands for command in commands} == dict.fromkeys(commands, set())


def test_no_test_file_imports_a_test_file():
    tests = {path for path in (REPOSITORY / "tests").rglob("*.py") if "golden" not in path.parts}
    names = {name for path in tests for name in imported_names(path.read_text(encoding="utf-8"))}
    assert not [name for name in names if any(part.startswith("test_") for part in name.split("."))]


def test_contributing_lists_every_subpackage_in_their_order_and_every_folder():
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## The map")[2].partition("\n## ")[0]
    folders = re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE)
    listed = [folder for folder in folders if folder in FOLDERS.values() and folder != "wedlm"]
    assert listed == [FOLDERS[name] for name in SUBPACKAGES]
    made = {"build", "dist", "__pycache__"}
    on_disk = {path.name for path in REPOSITORY.iterdir() if path.is_dir() and path.suffix != ".egg-info"}
    assert {name for name in on_disk - made if not name.startswith(".")} <= set(folders)
    assert all((REPOSITORY / folder).is_dir() for folder in folders)


def test_a_graph_is_read_from_sources_and_its_wrong_arrows_are_found():
    sources = {
        "wedlm": "from wedlm.fused.a import c",
        "wedlm.fused.a": "def f():\n    from wedlm.training.b import g",
        "wedlm.training.b": "from wedlm import Public\nimport torch",
    }
    graph = import_graph(sources, {"Public": "wedlm.fused.a"})
    assert graph == {
        "wedlm": {"wedlm.fused.a"},
        "wedlm.fused.a": {"wedlm.training.b"},
        "wedlm.training.b": {"wedlm.fused.a"},
    }
    assert set(circle(graph)) == {"wedlm.fused.a", "wedlm.training.b"}
    order = ["wedlm.fused", "wedlm.training", "wedlm"]
    assert against_the_order(graph, order) == {("wedlm.fused.a", "wedlm.training.b")}
