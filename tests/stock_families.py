"""Tiny random models of many families of transformers, and of some that verified decoding refuses."""

import functools

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY, PAD, EOS = 60, 0, 2
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "initializer_range": 0.3,
}
BETWEEN = ["sliding_attention", "full_attention", "sliding_attention"]  # layers that differ
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# Keys that are wider than values.
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 6}

FITTING = {
    "Llama": {"intermediate_size": 64},  # whole blocks of weights
    "Qwen2": {},
    "Qwen2, some layers sliding": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Qwen3": {"head_dim": 8},
    "Qwen3Moe": {"head_dim": 8, **EXPERTS},
    "Mistral": {"sliding_window": None},
    "Mistral, sliding": {"sliding_window": 5},
    "Mixtral": {"num_local_experts": 4, "sliding_window": None},
    "Mixtral, sliding": {"num_local_experts": 4, "sliding_window": 5},
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8, "layer_types": BETWEEN},
    "Gemma3": {  # which also reads images, whose tokens no prompt has
        "text_config": {**SHARED, "head_dim": 8, "sliding_window": 6, "layer_types": BETWEEN},
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"image_size": 28, "patch_size": 14},
        "image_token_id": VOCABULARY,
    },
    "Olmo": {},
    "Olmo2": {},
    "Granite": {},
    "Phi": {},
    "Phi3": {"sliding_window": 5},
    "SmolLM3": {"no_rope_layers": [1, 1, 0]},
    "Starcoder2": {"sliding_window": 5},
    "GPTNeoX": {},
    "GPT2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "n_inner": 48},
    "GptOss": {"head_dim": 8, "num_local_experts": 4, "sliding_window": 6, "layer_types": BETWEEN},
    "Cohere2": {"sliding_window": 6, "layer_types": BETWEEN},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "DeepseekV3": {**LATENT, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
    | {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4},
}
REFUSED = {
    "GPTNeo": {"attention_types": [[["global", "local", "local"], 1]], "num_layers": 3, "num_heads": 4},
    "Mamba": {"state_size": 4},
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4},
    "Qwen3Next": {"head_dim": 8, **EXPERTS, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "Lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "FalconH1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4},
    "Bloom": {"n_head": 4, "n_layer": 2},
    "Llama4Text": {"head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 8, "moe_layers": [1]},
}


@functools.cache
def stock(name: str) -> PreTrainedModel:
    """A model with random weights, whose logits differ enough to be no ties."""
    config_class = getattr(transformers, f"{name.partition(',')[0]}Config")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_class(**SHARED | {**FITTING, **REFUSED}[name])).eval()
