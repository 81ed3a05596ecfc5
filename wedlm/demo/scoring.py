"""The functions that the YAML files in lm_eval_tasks/ refer to: the demo's kinds as tasks of lm-eval."""

from functools import cache
from typing import Any

import evaluate
from datasets import Dataset, DatasetDict, Value

from wedlm.demo.checkers import check
from wedlm.demo.tasks import held_out_examples
from wedlm.evaluation.metrics import ExactMatch, info

MAX_EXAMPLES = 2000  # every kind has more held-out problems than that


class RightAnswers(evaluate.Metric):
    """The share of answers that are right, judged by the checker of their kind from the question alone.

    compute(predictions=["12, 16."], references=["Count by 4 from 12 to 16."], kind="counting") == {"right": 1.0}
    """

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": Value("string"), "references": Value("string")}
        return info("The share of answers that are right.", "Answers, and their questions.", features)

    def _compute(self, predictions: list[str], references: list[str], kind: str) -> dict[str, float]:
        right = [check(kind, question, answer) for answer, question in zip(predictions, references, strict=True)]
        return {"right": sum(right) / len(right)}


def dataset(kind: str, num_examples: int = 200, seed: int = 0, **_: Any) -> DatasetDict:
    """Held-out questions as lm-eval loads them.

    Args:
        kind (`str`): One of the demo's kinds.
        num_examples (`int`, *optional*, defaults to 200): Number of questions; lm-eval's metadata may set it.
        seed (`int`, *optional*, defaults to 0): Seed of the questions; lm-eval's metadata may set it.
    """
    for name, value, least, most in (("num_examples", num_examples, 1, MAX_EXAMPLES), ("seed", seed, 0, 2**31)):
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name}={value!r} of the metadata is no number from {least} to {most}; correct it.")
    records = [example._asdict() for example in held_out_examples(kind, num_examples, seed)]
    return DatasetDict({"test": Dataset.from_list(records)})


@cache
def metric(kind: type[evaluate.Metric]) -> evaluate.Metric:
    return kind()


def process_results(record: dict[str, str], results: list[str]) -> dict[str, float]:
    """The scores of one answer, as lm-eval asks for them: its record of the data set and the text of the model."""
    (text,) = results
    return {
        **metric(RightAnswers).compute(predictions=[text], references=[record["prompt"]], kind=record["kind"]),
        **metric(ExactMatch).compute(predictions=[text], references=[record["answer"]]),
    }
