"""The checks for a GPU: those that need none run without one, and every failure is told."""

import json
import sys

import pytest


@pytest.mark.slow
def test_the_checks_run_without_a_gpu(run, load_benchmark, capsys):
    report = run("gpu_checks", "--questions", 6, "--new-tokens", 40)
    module = load_benchmark("gpu_checks")
    found = {result["check"]: result for result in report["results"]}
    assert list(found) == list(module.CHECKS)
    assert module.FAILED not in {result["outcome"] for result in found.values()}
    if module.DEVICE == "cpu":
        passed = {name for name, result in found.items() if result["outcome"] == module.PASSED}
        assert {result["outcome"] for result in found.values()} == {module.PASSED, module.MISSING}
        assert passed == {
            "verified texts are the autoregressive ones, float32",
            "verified texts are the autoregressive ones, bfloat16",
            "a running batch",
            "training with Trainer",
        }
        assert found["4-bit weights"]["found"] == "a GPU"
    assert module.table(report["results"]) in capsys.readouterr().out


def test_a_failure_is_told_and_the_others_go_on(load_benchmark):
    module = load_benchmark("gpu_checks")

    def fails(questions):
        raise RuntimeError("no\nkernel")

    assert module.outcome(fails, None) == {"outcome": module.FAILED, "found": "RuntimeError: no kernel"}
    with pytest.raises(AssertionError, match="1 of 2 texts are the same; at least 100% were expected"):
        module.same(["a", "b"], ["a", "c"])
    assert module.same(["a", "b"], ["a", "c"], least=0.5) == "1 of 2 texts are the same"


def test_a_failure_is_saved_and_ends_the_script_with_an_error(load_benchmark, monkeypatch, tmp_path):
    module = load_benchmark("gpu_checks")

    def fails(questions):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(module, "CHECKS", {"one": lambda questions: "all is well", "other": fails})
    monkeypatch.setattr(sys, "argv", ["gpu_checks", "--questions", "6", "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="1 of 2 checks failed"):
        module.main()
    saved = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [result["outcome"] for result in saved] == [module.PASSED, module.FAILED]


def test_a_check_that_takes_the_process_with_it_leaves_the_others_outcomes(load_benchmark, monkeypatch, tmp_path):
    module = load_benchmark("gpu_checks")

    def dies(questions):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "CHECKS", {"one": lambda questions: "all is well", "other": dies})
    monkeypatch.setattr(sys, "argv", ["gpu_checks", "--questions", "6", "--out", str(tmp_path / "out.json")])
    with pytest.raises(KeyboardInterrupt):
        module.main()
    saved = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(result["check"], result["outcome"]) for result in saved] == [("one", module.PASSED)]


def test_what_is_missing_is_named(load_benchmark):
    module = load_benchmark("gpu_checks")

    def needs_it(questions):
        module.needs("no_such_package")

    assert module.outcome(needs_it, None) == {"outcome": module.MISSING, "found": "the package no_such_package"}
