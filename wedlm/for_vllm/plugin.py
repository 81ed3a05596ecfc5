"""The plugin that vLLM calls in each of its processes: it names the classes of drafters without importing them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM

# The class of a drafter by the model_type of its target's architecture. config.json of a drafter names the class.
DRAFTERS = {
    "qwen2": "WeDLMDrafterQwen2ForCausalLM",
    "qwen3": "WeDLMDrafterQwen3ForCausalLM",
    "llama": "WeDLMDrafterLlamaForCausalLM",
    "mistral": "WeDLMDrafterMistralForCausalLM",
}

MASK_EMBEDDING = "model.mask_embedding"  # a weight of every drafter


def is_draft(name: str) -> bool:
    """Whether a weight of a drafter is none of its target's."""
    return name == MASK_EMBEDDING or ".drafts." in name


def register() -> None:
    from vllm import ModelRegistry

    for name in DRAFTERS.values():
        ModelRegistry.register_model(name, f"wedlm.for_vllm.drafters:{name}")


def draft_counts(llm: "LLM") -> list[int]:
    """The steps with drafts so far, and behind them how many drafts were accepted at each place of a step.

    It takes a vLLM with `disable_log_stats=False`. Of several in one process, vLLM counts for the one made last.
    """
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    steps = metrics["vllm:spec_decode_num_drafts"].value
    return [steps, *metrics["vllm:spec_decode_num_accepted_tokens_per_pos"].values]
