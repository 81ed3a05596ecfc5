"""The Hub's metric code_eval, with code in our sandbox and without network."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import comb
from typing import Any
from unittest.mock import patch

import evaluate
from datasets import Features, Sequence, Value

from wedlm.evaluation.sandbox import run_python

CODE_SECONDS = 3.0  # time limit of a candidate


class CodeExecution(evaluate.Metric):
    """The chance that one of k candidates passes its test, estimated from all candidates as the Hub's code_eval does.

    CodeExecution().compute(predictions=[["def double(n): return 2 * n"]], references=["assert double(3) == 6"])[0]
    {"pass@1": 1.0}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Sequence(Value("string")), "references": Value("string")})
        return evaluate.MetricInfo(
            description="The chance that code passes a test.",
            citation="",
            inputs_description="Lists of candidates, and a test for each list.",
            features=features,
        )

    def _compute(
        self, predictions: list[list[str]], references: list[str], k: list[int] = (1,), timeout: float = CODE_SECONDS
    ) -> tuple[dict[str, float], dict[int, list[bool]]]:
        passed = {
            i: [run_python(f"{candidate}\n{test}", (), timeout).outcome == "finished" for candidate in candidates]
            for i, (candidates, test) in enumerate(zip(predictions, references, strict=True))
        }
        estimates = {
            f"pass@{number}": sum(pass_at(number, of_one) for of_one in passed.values()) / len(passed)
            for number in k
            if all(len(of_one) >= number for of_one in passed.values())
        }
        return estimates, passed


def pass_at(number: int, passed: list[bool]) -> float:
    """The share of all choices of `number` candidates that contain one that passed."""
    return 1 - comb(passed.count(False), number) / comb(len(passed), number)


def modules_missing_in_sandbox(tests: list[str]) -> list[str]:
    """The top-level modules that the tests import and the standard library, all the sandbox has, lacks."""
    names = set()
    for code in tests:
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except SyntaxError:
            continue
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    modules = sorted({name.partition(".")[0] for name in names})
    return [module for module in modules if module not in sys.stdlib_module_names]


@contextmanager
def our_code_eval_first() -> Iterator[None]:
    """Makes evaluate.load("code_eval") return CodeExecution, so that tasks run code in the sandbox."""
    load = evaluate.load

    def load_ours(path: str, *args: Any, **kwargs: Any) -> evaluate.EvaluationModule:
        return CodeExecution() if path == "code_eval" else load(path, *args, **kwargs)

    with patch.object(evaluate, "load", load_ours):
        yield
