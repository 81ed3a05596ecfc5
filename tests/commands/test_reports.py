"""Files that are written whole, tables in a pipe, and measurements that were stopped."""

import os
import subprocess

import pytest
from rich.table import Table

from wedlm.commands.reports import check_out_file, check_writable, table_console, write_whole


def test_a_page_replaces_no_link_and_nothing_but_files(tmp_path):
    target, link, pipe = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(target)
    write_whole(link, "one")
    write_whole(link, "two")
    assert link.is_symlink() and target.read_text() == "two"
    os.mkfifo(pipe)
    check_writable("--html", pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    write_whole(pipe, "three")
    assert reader.communicate()[0] == "three" and pipe.is_fifo()
    with pytest.raises(OSError):
        write_whole(tmp_path / ("x" * 300), "four")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "link.html", "pipe"}


def test_places_of_out_that_are_refused(tmp_path):
    file = tmp_path / "eval.json"
    check_out_file(file, overwrite=False)
    file.touch()
    check_out_file(file, overwrite=True)
    for out, overwrite, message in (
        (file, False, f"--out {file} exists; choose another file, or pass --overwrite."),
        (tmp_path, True, f"--out {tmp_path} is a folder, or lies in one that is not there; choose a file."),
        (tmp_path / "no" / "eval.json", True, "is a folder, or lies in one that is not there; choose a file."),
    ):
        with pytest.raises(ValueError) as error:
            check_out_file(out, overwrite)
        assert str(error.value).endswith(message)


def test_a_table_in_a_pipe_keeps_its_lines_whole(capsys):
    table = Table("a name")
    table.add_row("x" * 150)
    table_console().print(table)
    assert "x" * 150 in capsys.readouterr().out
