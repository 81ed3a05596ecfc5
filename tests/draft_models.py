"""Tiny models with random draft adapters of large weights, as PEFT's files and in the model itself."""

import torch
from helpers import EOS, MASK, PAD
from peft import PeftModel, get_peft_model

from wedlm import DraftLoraConfig, WeDLMConfig, WeDLMForCausalLM
from wedlm.training.draft_lora import LAYERS

FLAVOURS = {
    "qwen2": {"attention_bias": True, "qk_norm": False},
    "qwen3": {},
    "llama": {"qk_norm": False},
    "qwen2 tied": {"attention_bias": True, "qk_norm": False, "tie_word_embeddings": True},
    "qwen3 tied": {"tie_word_embeddings": True},
    "llama tied": {"qk_norm": False, "tie_word_embeddings": True},
}


def tiny_model(flavour="qwen3", seed=0, **fields) -> WeDLMForCausalLM:
    """A model whose predictions are sharp enough to differ from token to token."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = WeDLMConfig(
        **{**shape, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 160, "mask_token_id": MASK,
           "eos_token_id": EOS, "pad_token_id": PAD, **FLAVOURS[flavour], **fields}
    )  # fmt: skip
    torch.manual_seed(seed)
    model = WeDLMForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def fill(model: torch.nn.Module, adapter: str = "default", seed: int = 1) -> None:
    """Gives the weights of an adapter large random values."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name and f".{adapter}." in name:
            torch.nn.init.normal_(parameter, std=0.5)


def with_adapter(model: WeDLMForCausalLM, seed: int = 1, **fields) -> PeftModel:
    adapted = get_peft_model(model, DraftLoraConfig(**{"r": 4, "lora_alpha": 16, **fields})).eval()
    fill(adapted, seed=seed)
    return adapted


def save_adapter(folder, flavour="qwen3", seed=1, base=None, **fields):
    """Saves a random adapter of `tiny_model(flavour)`, or of a checkpoint that it then names as its base."""
    model = tiny_model(flavour) if base is None else WeDLMForCausalLM.from_pretrained(base)
    with_adapter(model, seed, **fields).save_pretrained(folder)
    return folder


def drafted(flavour="qwen3", seed=1, **fields) -> WeDLMForCausalLM:
    """`tiny_model` with a random draft adapter in the model itself."""
    return with_random_drafts(tiny_model(flavour, **fields), seed)


def with_random_drafts(model: WeDLMForCausalLM, seed: int = 1) -> WeDLMForCausalLM:
    """The same model, changed in place."""
    model.config.drafts = {"rank": 4, "modules": list(LAYERS)}
    model.model.add_drafts(**model.config.drafts)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "draft" in name or "mask_embedding" in name:
            torch.nn.init.normal_(parameter, std=0.7)
    return model
