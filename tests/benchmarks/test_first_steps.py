"""The benchmark of a newcomer's first commands; the commands themselves are make's."""

import subprocess
from pathlib import Path

import pytest


def test_targets_run_in_a_clone_with_another_home(run, load_benchmark, monkeypatch, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "Makefile").write_text(
        "demo:\n\tmkdir .venv\n\techo $$HOME > .venv/home\nfails:\n\tfalse\n"
        f"test:\n\ttest -f .venv/home\n\ttest $$HOME != {Path.home()}\n"
    )
    git = ["git", "-C", str(tmp_path / "source"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(load_benchmark("first_steps"), "REPOSITORY", tmp_path / "source")
    found = run("first_steps", "--targets", "demo", "test")["results"]
    assert [target["target"] for target in found["targets"]] == ["demo", "test"]
    assert found["environment_bytes"] > 0 and not (tmp_path / "source" / ".venv").exists()
    with pytest.raises(subprocess.CalledProcessError):
        run("first_steps", "--targets", "demo", "fails")
