"""Metrics that need no network: subclasses of evaluate.Metric, used as those of the Hub are."""

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

CODE_SECONDS = 3.0


def info(description: str, inputs: str, features: dict) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(
        description=description, citation="", inputs_description=inputs, features=Features(features)
    )


class ExactMatch(evaluate.Metric):
    """The share of predictions that are their reference: the Hub's exact_match, with its options.

    ExactMatch().compute(predictions=["4, 8.", "3"], references=["4, 8", "4"], ignore_punctuation=True)
    {"exact_match": 0.5}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Value("string"), "references": Value("string")}
        return info("The share of predictions that are their reference.", "Texts, and the right ones.", features)

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
    """The chance that one of k candidates passes its test, estimated from all of them: the Hub's code_eval.

    Each runs in `sandbox.run_python`: a process of its own, with little time and memory and nothing to reach.

        CodeExecution().compute(predictions=[["def double(n): return 2 * n"]], references=["assert double(3) == 6"])[0]
        {"pass@1": 1.0}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Several(Value("string")), "references": Value("string")}
        return info("The chance that code passes a test.", "Candidates, and a test for each list of them.", features)

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
    """Of all ways to choose `number` of the candidates, the share with one among them that passed."""
    return 1 - comb(passed.count(False), number) / comb(len(passed), number)


def modules_missing_in_sandbox(tests: list[str]) -> list[str]:
    """Those that one of the tests imports and the sandbox, which has the standard library alone, does not have."""
    names = set()
    for code in tests:
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except SyntaxError:
            continue
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    rooms = sorted({name.partition(".")[0] for name in names})
    return [room for room in rooms if room not in sys.stdlib_module_names]


OF_OURS = {"exact_match": ExactMatch, "code_eval": CodeExecution}  # by their names on the Hub


@contextmanager
def ours_first() -> Iterator[None]:
    """Within it evaluate.load gives ours for their names: tasks run code in the sandbox, with no network for it."""
    load = evaluate.load

    def load_ours(path: str, *args: Any, **kwargs: Any) -> evaluate.EvaluationModule:
        return OF_OURS[path]() if path in OF_OURS else load(path, *args, **kwargs)

    with patch.object(evaluate, "load", load_ours):
        yield
