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
    assert "It is Lima." in printed and "the same text: True" in printed
    assert "Answer: x = 5" in printed


def test_it_shows_what_its_cells_printed():
    shown = ["".join(text for output in cell["outputs"] for text in output.get("text", [])) for cell in CODE]
    assert all(shown), "make tour runs it"
    assert "It is Lima." in shown[4] and "the same text: True" in shown[5]
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert not any(place in text for text in shown for place in ("/tmp", "/home", "/root", "site-packages"))
