"""What `custom_generate/generate.py` of a repository on the Hub holds: verified decoding for any causal model."""

from typing import Any

from transformers import PreTrainedModel

from wedlm.generation.strategy import answer


def generate(model: PreTrainedModel, **arguments: Any):
    """`model.generate(**arguments)` by verified decoding, as `custom_generate="REPOSITORY"` calls it."""
    return answer(model, type(model).generate, (), arguments)
