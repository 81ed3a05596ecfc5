"""Files that are written whole, tables in a pipe, and measurements that were stopped."""

import pytest
from rich.table import Table

from wedlm.commands.reports import check_out_file, table_console


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
