"""The names of the stock architectures, in a file without torch."""

STOCK_FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral"}  # by model_type


def families() -> str:
    """The names of all stock architectures, for sentences."""
    *names, last = STOCK_FAMILIES.values()
    return f"{', '.join(names)} and {last}"
