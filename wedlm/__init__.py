"""WeDLM for transformers: after `import wedlm` the Auto classes load WeDLM checkpoints."""

import logging
from importlib import import_module
from importlib.metadata import version

from wedlm.generation.package import NEWEST_TRANSFORMERS, VERSION, is_untested
from wedlm.registration import register_when_transformers_is_used

# The modules of the public names. Each is imported with the first use of a name, so that `import wedlm` stays light.
PUBLIC_NAMES = {
    "WeDLMConfig": "wedlm.modeling_wedlm.configuration_wedlm",
    "SDARConfig": "wedlm.checkpoints.idlm",
    "WeDLMModel": "wedlm.modeling_wedlm.modeling_wedlm",
    "WeDLMForCausalLM": "wedlm.modeling_wedlm.modeling_wedlm",
    "verified": "wedlm.generation.custom_generate",
    "free_static_memory": "wedlm.generation.static_steps",
    "DraftLoraConfig": "wedlm.training.draft_lora",
    "load_draft_adapter": "wedlm.training.published_drafts",
    "load_gguf": "wedlm.checkpoints.gguf",
    "fuse": "wedlm.fused.model",
    "unfuse": "wedlm.fused.model",
    "DualStreamCollator": "wedlm.training.collator",
    "WeDLMTrainer": "wedlm.training.trainer",
    "WeDLMTrainingArguments": "wedlm.training.arguments",
    "convert_to_wedlm": "wedlm.checkpoints.convert",
    "convert_to_autoregressive": "wedlm.checkpoints.convert",
}

__all__ = list(PUBLIC_NAMES)
__version__ = VERSION


def __getattr__(name: str):
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module 'wedlm' has no attribute {name!r}; its public names are {', '.join(__all__)}.")
    return getattr(import_module(PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC_NAMES])


if is_untested(version("transformers")):
    logging.getLogger(__name__).warning(
        f"wedlm {VERSION} was tested with transformers up to {NEWEST_TRANSFORMERS}, and this is "
        f"{version('transformers')}; if something fails, look for a newer wedlm first."
    )
register_when_transformers_is_used()
