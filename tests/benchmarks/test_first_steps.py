"""The benchmark of a newcomer's first commands; the commands themselves are make's."""

import subprocess
from pathlib import Path

import pytest

REPORT = {
    "device": "AMD EPYC",
    "threads": 2,
    "versions": {"torch": "2.13.0+cpu"},
    "results": {
        "environment_bytes": 1_720_000_000,
        "targets": [{"target": "demo", "seconds": 91.2}, {"target": "test", "seconds": 197.0}],
    },
}


@pytest.fixture
def first_steps(load_benchmark):
    return load_benchmark("first_steps")


def test_the_sentence_tells_every_target(first_steps):
    assert first_steps.sentence(REPORT) == (
        "On 2 cores of an AMD EPYC, `make demo` takes 1 min 31 s with the installation (1.7 GB with torch "
        "2.13.0+cpu) and `make test` 3 min 17 s."
    )


def test_a_file_with_two_links_counts_once(first_steps, tmp_path):
    (tmp_path / "one").write_bytes(bytes(100_000))
    before = first_steps.bytes_of(tmp_path)
    (tmp_path / "other").hardlink_to(tmp_path / "one")
    assert first_steps.bytes_of(tmp_path) == before >= 100_000


def test_targets_run_in_a_clone_with_another_home(run, first_steps, monkeypatch, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "Makefile").write_text(
        "demo:\n\tmkdir .venv\n\techo $$HOME > .venv/home\nfails:\n\tfalse\n"
        f"test:\n\ttest -f .venv/home\n\ttest $$HOME != {Path.home()}\n"
    )
    git = ["git", "-C", str(tmp_path / "source"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(first_steps, "REPOSITORY", tmp_path / "source")
    found = run("first_steps", "--targets", "demo", "test")["results"]
    assert [target["target"] for target in found["targets"]] == ["demo", "test"]
    assert all(target["seconds"] > 0 for target in found["targets"]) and found["environment_bytes"] > 0
    with pytest.raises(subprocess.CalledProcessError):
        run("first_steps", "--targets", "demo", "fails")
    assert not (tmp_path / "source" / ".venv").exists()
