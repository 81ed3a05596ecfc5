"""What the tasks of this folder load and how they score, for lm-eval."""

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from wedlm.evaluation.sandbox import run_python  # noqa: F401 - by which `wedlm eval` knows that functions run in it

sys.path.append(str(Path(__file__).parents[3]))  # lm-eval loads this file from whatever folder it runs in
from examples.demo.example import Example
from examples.demo.tasks import check, held_out_examples

MAX_EXAMPLES = 2000  # every kind has more held-out problems than that


def dataset(kind: str, num_examples: int = 200, seed: int = 0, **_: Any) -> DatasetDict:
    """Held-out questions of a kind; lm-eval's metadata may set their number and seed."""
    for name, value, least, most in (("num_examples", num_examples, 1, MAX_EXAMPLES), ("seed", seed, 0, 2**31)):
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name}={value!r} of the metadata is no number from {least} to {most}; correct it.")
    return DatasetDict(
        {"test": Dataset.from_list([each._asdict() for each in held_out_examples(kind, num_examples, seed)])}
    )


def process_results(record: dict[str, str], results: list[str]) -> dict[str, float]:
    """The scores of one answer, from lm-eval's record of the data set and the text of the model."""
    (text,) = results
    is_right = check(Example(**record), text)
    return {"right": float(is_right), "exact_match": float(text == record["answer"])}
