"""The folder of a result: accepted or refused, complete or absent."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from stock_checkpoints import edit, files_of, save_stock

from wedlm import convert_to_wedlm
from wedlm.checkpoints import new_folder, plan
from wedlm.checkpoints.errors import CheckpointError


def test_folders_that_are_refused(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    (tmp_path / "full" / "config.json").write_text('{"auths": {}}')  # of another program
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "here").mkdir()
    (tmp_path / "mount").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    is_mount = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mount" or is_mount(path))
    before = files_of(tmp_path)
    for out, overwrite, message in (
        (tmp_path / "file", True, "is a file; choose"),
        (
            tmp_path / "full",
            False,
            "is not empty; choose another folder, or pass --overwrite .in Python overwrite=True.",
        ),
        (tmp_path / "full", True, "is not a checkpoint, and only a checkpoint is overwritten"),
        (source, True, "are the same folder, or one lies in the other"),
        (source / "inside", False, "are the same folder, or one lies in the other"),
        (tmp_path / "file" / "inside", False, r"could not be written \(.*\) and is as it was; make room"),
        ("", False, "is a mount point, or the folder you are in"),
        ("..", False, "is a mount point, or the folder you are in|is not empty"),
        (tmp_path / "loop", False, "cannot be read"),
        (tmp_path / "mount", False, "is a mount point, or the folder you are in"),
    ):
        with pytest.raises(CheckpointError, match=message):
            convert_to_wedlm(source, out, overwrite=overwrite)
        assert files_of(tmp_path) == before
    shutil.copy(source / "config.json", tmp_path)
    monkeypatch.chdir("/")
    with pytest.raises(CheckpointError, match="are the same folder, or one lies in the other"):
        convert_to_wedlm(source, tmp_path, overwrite=True)  # the source lies in it and would go too


def test_an_adapter_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert new_folder.check_out(tmp_path / "full", overwrite=True) == tmp_path / "full"
    with pytest.raises(CheckpointError, match="is not empty"):
        new_folder.check_out(tmp_path / "full", overwrite=False)


def test_links_within_the_checkpoint_and_into_the_hubs_cache_stay(source, tmp_path, monkeypatch):
    shutil.move(source / "tokenizer.json", source / "real.json")
    (source / "tokenizer.json").symlink_to("real.json")
    convert_to_wedlm(source, tmp_path / "wedlm")
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in (path for path in source.iterdir() if path.name != "real.json"):
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    convert_to_wedlm(snapshot, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "wedlm")
    (tmp_path / "folder").mkdir()
    for path in blobs.iterdir():
        (tmp_path / "folder" / path.name).symlink_to(path)
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        convert_to_wedlm(tmp_path / "folder", tmp_path / "third")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(blobs.parents[1]))
    convert_to_wedlm(tmp_path / "folder", tmp_path / "third")
    assert files_of(tmp_path / "third") == files_of(tmp_path / "wedlm")
    (blobs / "LICENSE").symlink_to("/etc/hostname")
    (snapshot / "LICENSE").symlink_to("../../blobs/LICENSE")
    with pytest.raises(CheckpointError, match="LICENSE is a link to /etc/hostname"):
        convert_to_wedlm(snapshot, tmp_path / "fourth")


def test_parents_made_in_vain_go_away_again(source, tmp_path):
    edit(source / "tokenizer_config.json", tokenizer_class=7)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        convert_to_wedlm(source, tmp_path / "a" / "b" / "c")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_overwriting_replaces_the_whole_folder(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "wedlm")
    expected = files_of(tmp_path / "wedlm")
    (tmp_path / "wedlm" / "old.safetensors").write_text("old")
    (tmp_path / "wedlm.incomplete-0").mkdir()  # another process may be using it
    (note,) = convert_to_wedlm(source, tmp_path / "wedlm", overwrite=True).notes
    assert str(tmp_path / "wedlm.incomplete-0") in note
    assert files_of(tmp_path / "wedlm") == expected
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm", "wedlm.incomplete-0"}


def test_a_folder_that_fills_up_meanwhile_is_not_replaced(source, tmp_path, monkeypatch):
    original = plan.write_weights

    def and_then(plan, folder):
        original(plan, folder)
        (tmp_path / "wedlm").mkdir()
        (tmp_path / "wedlm" / "letter.txt").write_text("mine")

    monkeypatch.setattr(plan, "write_weights", and_then)
    with pytest.raises(CheckpointError, match="could not be written"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert files_of(tmp_path / "wedlm") == {"letter.txt": b"mine"}
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm"}


def test_disk_space_is_checked_first(source, tmp_path, monkeypatch):
    (tmp_path / "wedlm.incomplete-0").mkdir()
    needed = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(new_folder.shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(CheckpointError, match="needs 0.03 GB and its disk has 0.00 GB free; free some .*incomplete-0"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm.incomplete-0"}


def strike_child(source, parent, overwrite, by_kill, moment):
    """Converts in a child and returns its exit code, 0 if it ended before the moment of the strike.

    A moment is each time that it opens, makes, renames or removes something under `parent`.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = 0

    def strike(event, arguments):
        nonlocal seen
        if event not in ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove"):
            return
        seen += str(parent) in str(arguments[:1])
        if seen == moment:
            if by_kill:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            raise KeyboardInterrupt

    code = 1
    try:
        sys.addaudithook(strike)
        convert_to_wedlm(source, parent / "out", overwrite=overwrite)
        code = 0
    except KeyboardInterrupt:
        code = 7
    finally:
        os._exit(code)


def strike(tmp_path, overwrite, by_kill, step):
    source, parent = tmp_path / "source", tmp_path / "parent"
    parent.mkdir()
    save_stock(source)
    convert_to_wedlm(source, tmp_path / "expected")
    expected, outcomes = files_of(tmp_path / "expected"), set()
    old = {"config.json": b'{"model_type": "old"}', "old.txt": b"old"} if overwrite else {}
    out = parent / "out"
    for moment in range(1, 10000, step):
        out.mkdir()
        for name, content in old.items():
            (out / name).write_bytes(content)
        code = strike_child(source, parent, overwrite, by_kill, moment)
        assert code in (0, -signal.SIGKILL if by_kill else 7)
        found = files_of(out) if out.exists() else "absent"
        state = "complete" if found == expected else "old" if found == old else found
        assert state in ("complete", "old", "absent"), (moment, sorted(state))
        others = sorted(path for path in parent.iterdir() if path.name != "out")
        if state == "absent" and overwrite:
            assert any(files_of(path) == old for path in others), "the old folder is lost"
            assert any(files_of(path) == expected for path in others), "and the new one is not complete"
        for path in others:
            assert path.name.startswith(("out.incomplete-", "out.replaced-")), path
            # Ctrl-C leaves at most a folder whose removal it interrupted.
            assert by_kill or (state == "complete" and path.name.startswith("out.replaced-")), (moment, path)
            shutil.rmtree(path)
        shutil.rmtree(out, ignore_errors=True)
        outcomes.add(state)
        if code == 0:
            break
    assert moment > 30 and {"complete", "old"} <= outcomes


def test_killed_at_some_moments_the_result_is_complete_or_absent(tmp_path):
    strike(tmp_path, overwrite=True, by_kill=True, step=7)


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("by_kill", [True, False], ids=["kill", "interrupt"])
def test_struck_at_every_moment_the_result_is_complete_or_absent(tmp_path, overwrite, by_kill):
    strike(tmp_path, overwrite, by_kill, step=1)
