"""The scripts for a GPU run without one, on a toy model, and every failure of a check is told."""

import json
import sys

import pytest


@pytest.mark.slow
def test_decodings_are_measured_beside_the_memory_floor(run, capsys):
    arguments = ("--batch-sizes", 1, "--length", 24, "--new-tokens", 16, "--window-size", 4, "--repeats", 1)
    rows = run("gpu", "--shape", "tiny", *arguments)["results"]["rows"]
    decodings = ["stock", "autoregressive", "one slot", "streaming", "verified", "streaming, ordinary steps"]
    assert [row["side"] for row in rows] == decodings
    assert all(row["milliseconds_per_step"]["median"] > row["memory_floor_milliseconds"] > 0 for row in rows)


@pytest.mark.slow
def test_the_checks_run_without_a_gpu(run, load_benchmark):
    results = run("gpu_checks", "--questions", 6, "--new-tokens", 40)["results"]
    module = load_benchmark("gpu_checks")
    assert [result["check"] for result in results] == list(module.CHECKS)
    assert module.FAILED not in {result["outcome"] for result in results}


def test_a_failed_check_is_saved_and_ends_the_script_with_an_error(load_benchmark, monkeypatch, tmp_path):
    module = load_benchmark("gpu_checks")

    def fails(questions):
        raise RuntimeError("no kernel")

    def needs(questions):
        module.needs("no_such_package")

    checks = {"one": fails, "other": lambda questions: "all is well", "third": needs}
    monkeypatch.setattr(module, "CHECKS", checks)
    monkeypatch.setattr(sys, "argv", ["gpu_checks", "--questions", "6", "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="1 of 3 checks failed"):
        module.main()
    saved = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [result["outcome"] for result in saved] == [module.FAILED, module.PASSED, module.MISSING]
