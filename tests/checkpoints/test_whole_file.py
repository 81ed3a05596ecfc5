"""Files that are written whole."""

import os
import subprocess

import pytest

from wedlm.checkpoints.whole_file import is_ordinary, write_whole


def test_a_page_replaces_no_link_and_nothing_but_files(tmp_path):
    target, link, pipe = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(target)
    write_whole(link, "one")
    write_whole(link, "two")
    assert link.is_symlink() and target.read_text() == "two"
    os.mkfifo(pipe)
    assert is_ordinary(target) and is_ordinary(tmp_path / "new") and not is_ordinary(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    write_whole(pipe, "three")
    assert reader.communicate()[0] == "three" and pipe.is_fifo()
    with pytest.raises(OSError):
        write_whole(tmp_path / ("x" * 300), "four")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "link.html", "pipe"}
