"""The plugin that vLLM calls in each of its processes: it names the classes of drafters without importing them."""

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
