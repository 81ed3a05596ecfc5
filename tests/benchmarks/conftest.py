"""Fixtures that import and run the scripts of benchmarks/."""

import importlib
import json
import sys

import pytest
from helpers import REPOSITORY
from human_eval_problems import save_package

from examples import real_adapter

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture
def load_benchmark(monkeypatch):
    """Imports a module of benchmarks/ by its name; all that were imported are forgotten behind the test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    loaded = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - loaded:
        if (BENCHMARKS / f"{name}.py").exists():
            del sys.modules[name]


@pytest.fixture
def run(load_benchmark, monkeypatch, tmp_path):
    """Runs the main of a benchmark in this process and returns its report."""

    def run(name, *arguments):
        out = tmp_path / f"{name}.json"
        words = [f"{BENCHMARKS}/{name}.py", *map(str, arguments), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", words)
        load_benchmark(name).main()
        return json.loads(out.read_text())

    return run


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """HumanEval with three problems."""
    monkeypatch.setattr(real_adapter, "HUMAN_EVAL_SHA256", save_package(tmp_path))
    return tmp_path
