"""The counts that vLLM keeps of a drafter's drafts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM

STEPS = "vllm:spec_decode_num_drafts"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos"


def drafted(llm: "LLM") -> list[int]:
    """
    The number of steps with drafts so far, and behind it that of accepted drafts for each place in a step.

    Args:
        llm (`vllm.LLM`):
            vLLM with a drafter and with `disable_log_stats=False`. Of several in one process, vLLM counts for the one
            that was made last.
    """
    metrics = {metric.name: metric for metric in llm.get_metrics() if metric.name in (STEPS, ACCEPTED)}
    return [metrics[STEPS].value, *metrics[ACCEPTED].values]
