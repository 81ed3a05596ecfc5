"""The package's import graph is the one that setup.py and the map in CONTRIBUTING.md state."""

import re

import pytest
from helpers import REPOSITORY
from import_graph import (
    FOLDERS,
    PUBLIC_NAMES,
    ROOMS,
    against_the_order,
    arrows_among,
    between_rooms,
    circle,
    import_graph,
    imported_names,
    lazy_imports,
    resolve,
    room_of,
    source_files,
)

SOURCES = {module: path.read_text(encoding="utf-8") for module, path in source_files().items()}
GRAPH = import_graph(SOURCES, PUBLIC_NAMES)
COMMANDS = "wedlm.commands"


def test_every_source_file_is_in_a_room():
    on_disk = {path for folder in FOLDERS.values() for path in (REPOSITORY / folder).rglob("*.py")}
    assert set(source_files().values()) == on_disk
    assert all(GRAPH[module] for module in (f"{COMMANDS}.cli", "wedlm.generation.generation_wedlm")), "nothing is read"


def test_rooms_import_only_rooms_before_them():
    """A public name (`from wedlm import WeDLMTrainer`) counts as an import of the room where it is defined."""
    rooms = {room: targets - {"wedlm"} for room, targets in between_rooms(GRAPH).items() if room != "wedlm"}
    assert circle(rooms) == []
    assert against_the_order(rooms, ROOMS) == set()


def test_no_room_imports_the_face():
    """The face is `wedlm/*.py`: it points into every room, and rooms use nothing of it but public names."""
    assert {
        module for module in GRAPH if room_of(module) != "wedlm" and "wedlm" in map(room_of, GRAPH[module])
    } == set()


@pytest.mark.parametrize("room", ROOMS)
def test_files_of_a_room_import_each_other_in_no_circle(room):
    inside = {module for module in GRAPH if room_of(module) == room}
    assert circle({module: GRAPH[module] & inside for module in inside}) == []


def test_no_command_imports_another():
    """The commands are the files that cli.py imports when one of them is called; what it imports at once is shared."""
    cli = SOURCES[f"{COMMANDS}.cli"]
    called = {resolve(name, SOURCES, PUBLIC_NAMES) for name in lazy_imports(cli)}
    commands = {module for module in called if module is not None and room_of(module) == COMMANDS}
    commands -= {f"{COMMANDS}.answering"}  # which several commands share
    assert len(commands) >= 4
    assert arrows_among(GRAPH, commands) == set()


def test_no_test_file_imports_a_test_file():
    tests = {path for path in (REPOSITORY / "tests").rglob("*.py") if "golden" not in path.parts}
    importing = {
        path.name
        for path in tests
        for name in imported_names(path.read_text(encoding="utf-8"))
        if any(part.startswith("test_") for part in name.split("."))
    }
    assert importing == set()


def test_contributing_lists_every_room_in_their_order_and_every_folder():
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## The map")[2].partition("\n## ")[0]
    folders = re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE)
    assert [folder for folder in folders if folder in FOLDERS.values() and folder != "wedlm"] == [
        FOLDERS[room] for room in ROOMS
    ]
    made = {"build", "dist", "__pycache__"}
    on_disk = {path.name for path in REPOSITORY.iterdir() if path.is_dir() and path.suffix != ".egg-info"}
    assert {name for name in on_disk - made if not name.startswith(".")} <= set(folders)
    assert all((REPOSITORY / folder).is_dir() for folder in folders)


# --- The checks themselves ---


def test_a_graph_is_read_from_sources_and_its_wrong_arrows_are_found():
    sources = {
        "wedlm": "from wedlm.a.b import c",
        "wedlm.a.b": "def f():\n    from wedlm.a.d import g",
        "wedlm.a.d": "from wedlm import Face\nimport torch",
    }
    graph = import_graph(sources, {"Face": "wedlm.a.b"})
    assert graph == {"wedlm": {"wedlm.a.b"}, "wedlm.a.b": {"wedlm.a.d"}, "wedlm.a.d": {"wedlm.a.b"}}
    assert set(circle(graph)) == {"wedlm.a.b", "wedlm.a.d"}
    assert against_the_order(graph, ["wedlm.a.d", "wedlm.a.b", "wedlm"]) == {("wedlm.a.d", "wedlm.a.b")}
    assert arrows_among(graph, {"wedlm", "wedlm.a.b"}) == {("wedlm", "wedlm.a.b")}
