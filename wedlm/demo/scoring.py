"""The demo's kinds as tasks of lm-eval: what the YAML files in lm_eval_tasks/ refer to."""

from functools import cache
from typing import Any

import evaluate
from datasets import Dataset, DatasetDict, Value

from wedlm.demo.checkers import check
from wedlm.demo.tasks import held_out_examples
from wedlm.evaluation.metrics import ExactMatch, info

MAX_EXAMPLES = 2000  # every kind has more problems that are held out


class RightAnswers(evaluate.Metric):
    """The share of answers that the checker of their kind, which reads the question alone, finds right.

    compute(predictions=["12, 16."], references=["Count by 4 from 12 to 16."], kind="counting") == {"right": 1.0}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Value("string"), "references": Value("string")}
        return info("The share of answers found right.", "Answers, and their questions.", features)

    def _compute(self, predictions: list[str], references: list[str], kind: str) -> dict[str, float]:
        right = [check(kind, question, answer) for answer, question in zip(predictions, references, strict=True)]
        return {"right": sum(right) / len(right)}


def dataset(kind: str, num_examples: int = 200, seed: int = 0, **_: Any) -> DatasetDict:
    """Held-out questions; lm-eval's metadata may set `num_examples` and `seed`."""
    for name, value, least, most in (("num_examples", num_examples, 1, MAX_EXAMPLES), ("seed", seed, 0, 2**31)):
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name}={value!r} of the metadata is no number from {least} to {most}; correct it.")
    rows = [example._asdict() for example in held_out_examples(kind, num_examples, seed)]
    return DatasetDict({"test": Dataset.from_list(rows)})


@cache
def metric(kind: type[evaluate.Metric]) -> evaluate.Metric:
    return kind()


def process_results(row: dict[str, str], results: list[str]) -> dict[str, float]:
    (text,) = results
    return {
        **metric(RightAnswers).compute(predictions=[text], references=[row["prompt"]], kind=row["kind"]),
        **metric(ExactMatch).compute(predictions=[text], references=[row["answer"]]),
    }
