"""The notebook docs/tour.ipynb runs, and shows what its cells printed."""

import json

import pytest
from helpers import REPOSITORY

CELLS = json.loads((REPOSITORY / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


@pytest.mark.full
def test_its_cells_run_in_their_order(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "hub_card").symlink_to(REPOSITORY / "hub_card")
    monkeypatch.chdir(tmp_path / "docs")
    namespace = {}
    for cell in CODE:
        exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), namespace)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("It is Lima.", "the same output: True", "Answer: x = 5"))


def test_it_shows_what_its_cells_printed():
    shown = ["".join(text for output in cell["outputs"] for text in output.get("text", [])) for cell in CODE]
    assert all(shown), "make tour runs it"
    assert not any(folder in text for text in shown for folder in ("/tmp", "/home", "/root", "site-packages"))
