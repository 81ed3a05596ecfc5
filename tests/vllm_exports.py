"""Drafters that were exported for vLLM, loaded into WeDLM's own class."""

import json

import torch
from stock_checkpoints import weights_of

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.for_vllm.plugin import DRAFTERS


def drafter_as_wedlm(folder) -> WeDLMForCausalLM:
    """The WeDLM that a drafter must be: the same weights, and rows of zeros up to MASK, whose embedding is apart."""
    fields, weights = json.loads((folder / "config.json").read_text()), weights_of(folder)
    assert fields["architectures"] == [DRAFTERS[fields.pop("model_type")]]
    mask_token_id = fields.pop("pard_token")
    rows = max(fields["vocab_size"], mask_token_id + 1)
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
        missing = weights[name].new_zeros(rows - len(weights[name]), weights[name].shape[1])
        weights[name] = torch.cat([weights[name], missing])
    rope = {"rope_type": "default", **(fields.pop("rope_scaling") or {}), "rope_theta": fields.pop("rope_theta")}
    layers = {"attention_bias": "self_attn.q_proj.bias", "qk_norm": "self_attn.q_norm.weight"}
    own = {name: f"model.layers.0.{weight}" in weights for name, weight in layers.items()}
    own |= {"vocab_size": rows, "mask_token_id": mask_token_id, "rope_parameters": rope}
    head_dim = fields["hidden_size"] // fields["num_attention_heads"]
    drafts = fields.pop("drafts") or {"rank": 1, "modules": []}
    model = WeDLMForCausalLM(WeDLMConfig(**{"head_dim": head_dim, **fields, **own, "drafts": drafts})).eval()
    if fields["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model
