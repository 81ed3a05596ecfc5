"""Metrics that replace two of the Hub's, exact_match and code_eval, and need no network."""

import ast
import re
import string
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import Any
from unittest.mock import patch

import evaluate
from datasets import Features, Value
from datasets import Sequence as Several

from wedlm.evaluation.sandbox import run_python

CODE_SECONDS = 3.0  # time limit of a candidate


def info(description: str, inputs: str, features: dict) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(
        description=description, citation="", inputs_description=inputs, features=Features(features)
    )


class ExactMatch(evaluate.Metric):
    """The share of predictions that equal their reference, with the options of the Hub's exact_match.

    ExactMatch().compute(predictions=["4, 8.", "3"], references=["4, 8", "4"], ignore_punctuation=True)
    {"exact_match": 0.5}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Value("string"), "references": Value("string")}
        return info("The share of predictions that equal their reference.", "Texts, and the right ones.", features)

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        regexes_to_ignore: Sequence[str] | None = None,
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
        ignore_numbers: bool = False,
    ) -> dict[str, float]:
        ignored = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")

        def compared(text: str) -> str:
            for pattern in regexes_to_ignore or ():
                text = re.sub(pattern, "", text)
            text = text.lower() if ignore_case else text
            return text.translate(str.maketrans("", "", ignored))

        same = [compared(told) == compared(right) for told, right in zip(predictions, references, strict=True)]
        return {"exact_match": sum(same) / len(same)}


class CodeExecution(evaluate.Metric):
    """The chance that one of k candidates passes its test, estimated from all candidates as the Hub's code_eval does.

    Each candidate runs in the sandbox, `sandbox.run_python`.

        CodeExecution().compute(predictions=[["def double(n): return 2 * n"]], references=["assert double(3) == 6"])[0]
        {"pass@1": 1.0}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Several(Value("string")), "references": Value("string")}
        return info("The chance that code passes a test.", "Lists of candidates, and a test for each list.", features)

    def _compute(
        self, predictions: list[list[str]], references: list[str], k: list[int] = (1,), timeout: float = CODE_SECONDS
    ) -> tuple[dict[str, float], dict[int, list[bool]]]:
        passed = {
            i: [run_python(f"{candidate}\n{test}", (), timeout).outcome == "finished" for candidate in candidates]
            for i, (candidates, test) in enumerate(zip(predictions, references, strict=True))
        }
        estimates = {
            f"pass@{number}": sum(pass_at(number, list(of_one)) for of_one in passed.values()) / len(passed)
            for number in k
            if all(len(of_one) >= number for of_one in passed.values())
        }
        return estimates, passed


def pass_at(number: int, passed: list[bool]) -> float:
    """Returns the share of all choices of `number` candidates that contain one that passed."""
    return 1 - comb(passed.count(False), number) / comb(len(passed), number)


def modules_missing_in_sandbox(tests: list[str]) -> list[str]:
    """Returns the top-level modules that the tests import and the standard library, all the sandbox has, lacks."""
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


OUR_METRICS = {"exact_match": ExactMatch, "code_eval": CodeExecution}  # by name on the Hub


@contextmanager
def our_metrics_first() -> Iterator[None]:
    """Makes evaluate.load return our metrics for their names on the Hub, so that tasks run code in the sandbox."""
    load = evaluate.load

    def load_ours(path: str, *args: Any, **kwargs: Any) -> evaluate.EvaluationModule:
        return OUR_METRICS[path]() if path in OUR_METRICS else load(path, *args, **kwargs)

    with patch.object(evaluate, "load", load_ours):
        yield
