"""Results are kept for the next run, and only for it."""

import json
import re

import pytest

from wedlm.evaluation.work_file import WorkFile, resumable


def test_other_runs_keep_their_work(tmp_path):
    stopped, finished = (WorkFile(tmp_path / "work", {"run": number}) for number in range(2))
    for work in (stopped, finished):
        work.add(("a", 1), "answer")
    finished.remove()
    assert list(WorkFile(tmp_path / "work", {"run": 0}).results.values()) == ["answer"]
    stopped.remove()
    assert not (tmp_path / "work").exists()


def test_a_line_that_was_not_finished_is_dropped(tmp_path):
    work = WorkFile(tmp_path, {})
    work.add(("a", 1), [1, "ü"])
    with open(work.path, "a", encoding="utf-8") as file:
        file.write('[["b", 2], [[')
    again = WorkFile(tmp_path, {})
    assert again.results == {("a", 1): [1, "ü"]} and ("b", 2) not in again
    again.add(("b", 2), None)
    assert [json.loads(line) for line in work.path.read_text(encoding="utf-8").splitlines()] == [
        [["a", 1], [1, "ü"]], [["b", 2], None]
    ]  # fmt: skip


@pytest.mark.parametrize("damage", [b"\xff\n", b"no JSON\n", b"3\n"])
def test_a_damaged_file_is_named(tmp_path, damage):
    work = WorkFile(tmp_path, {})
    work.path.write_bytes(damage)
    with pytest.raises(ValueError, match=re.escape(f"{work.path} is damaged (") + ".*; delete it, .*"):
        WorkFile(tmp_path, {})
    assert work.path.read_bytes() == damage


def test_a_measurement_says_where_it_goes_on(tmp_path, capsys):
    folder = tmp_path / "eval.json.work"
    with pytest.raises(ValueError), resumable(WorkFile(folder, {"seed": 1})):
        raise ValueError  # before there was any result
    assert capsys.readouterr().err == "" and not folder.exists()
    work = WorkFile(folder, {"seed": 1})
    with pytest.raises(KeyboardInterrupt), resumable(work):
        work.add(("task", 0), 1)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"\nStopped; the same command goes on from the results in {folder}.\n"
    with resumable(WorkFile(folder, {"seed": 1})):
        assert capsys.readouterr().err == f"Going on from the results in {folder}.\n"
