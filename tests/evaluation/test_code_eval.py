"""Our code_eval computes what the Hub's does, and replaces it while tasks are loaded."""

from itertools import combinations

import evaluate
import pytest

from wedlm.evaluation.code_eval import (
    CodeExecution,
    modules_missing_in_sandbox,
    our_code_eval_first,
    pass_at,
)


def test_code_that_passes_its_test():
    right, wrong, endless = "def f(n): return 2 * n", "def f(n): return n", "while True: pass"
    scores, passed = CodeExecution().compute(
        predictions=[[right, wrong], [endless, "import os; os.remove('x')"]],
        references=["assert f(3) == 6", "pass"],
        k=[1, 2, 3],
        timeout=1.0,
    )
    assert passed == {0: [True, False], 1: [False, False]}
    assert scores == {"pass@1": 0.25, "pass@2": 0.5}, "three cannot be chosen from two candidates"


def test_the_chance_of_k_is_that_of_all_choices_of_k():
    for passed in ([True, False, False, True], [False] * 3, [True] * 3):
        for k in (1, 2):
            choices = list(combinations(passed, k))
            assert pass_at(k, passed) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_tasks_that_load_the_hubs_metric_get_ours(monkeypatch):
    """lm-eval's HumanEval loads and tries it on import, here without network."""
    asked = []
    monkeypatch.setattr(evaluate, "load", lambda path, *args, **kwargs: asked.append(path))
    with our_code_eval_first():
        from lm_eval.tasks.humaneval import utils

        evaluate.load("bleu")
    assert asked == ["bleu"]
    assert utils.pass_at_k(["assert f(3) == 6"], [["def f(n): return 2 * n"]], k=[1]) == {"pass@1": 1.0}
    assert isinstance(utils.compute_, CodeExecution)
    evaluate.load("code_eval")
    assert asked == ["bleu", "code_eval"], "evaluate.load is as before"


def test_what_the_sandbox_cannot_import_is_known():
    code = "import math, numpy as np\nfrom pandas.core import frame\nfrom collections import deque"
    assert modules_missing_in_sandbox(["import re", "no code at all", code]) == ["numpy", "pandas"]
    assert modules_missing_in_sandbox(["no code at all"]) == []
