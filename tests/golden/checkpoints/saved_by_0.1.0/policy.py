from typing import NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList


def what_suits(device: torch.device) -> int:
    """On a CPU a window's rows cost arithmetic, which a GPU does while it reads the weights: benchmarks/RESULTS.md."""
    return 8 if device.type == "cpu" else 16


class Policy(NamedTuple):
    """How the steps of a call decode."""

    decoding: str
    window_size: int
    mask_token_id: int
    end_tokens: torch.Tensor
    do_sample: bool
    # Tensors, so that a compiled step does for all values.
    entropy_threshold: torch.Tensor | None
    distance_penalty: torch.Tensor
    processors: LogitsProcessorList

    @classmethod
    def of(
        cls,
        generation_config: GenerationConfig,
        processors: LogitsProcessorList,
        window_size: int,
        mask_token_id: int,
        device: torch.device,
    ) -> "Policy":
        end_tokens, threshold = generation_config._eos_token_tensor, generation_config.entropy_threshold
        return cls(
            decoding=generation_config.decoding,
            window_size=window_size,
            mask_token_id=mask_token_id,
            end_tokens=torch.empty(0, dtype=torch.long, device=device) if end_tokens is None else end_tokens,
            do_sample=generation_config.do_sample,
            entropy_threshold=None if threshold is None else torch.full((), float(threshold), device=device),
            distance_penalty=torch.full((), float(generation_config.distance_penalty), device=device),
            processors=processors,
        )
