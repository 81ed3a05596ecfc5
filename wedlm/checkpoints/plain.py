"""Configs with nothing unusual in them, read without transformers, whose import takes seconds.

What is not listed here, field or value, is left to transformers: the functions then return None or False, and their
caller builds the model and asks generate(). A test compares the two ways.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from wedlm.checkpoints.architectures import KEPT_ENTRY, STOCK
from wedlm.checkpoints.shards import DTYPES
from wedlm.generation.parameters import DEFAULTS, check_parameters, is_amount, is_count
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

Predicate = Callable[[Any], bool]

# --- Values ---


def only(*values: object) -> Predicate:
    return lambda value: any(type(value) is type(each) and value == each for each in values)


def optional(is_right: Predicate) -> Predicate:
    return lambda value: value is None or is_right(value)


def list_of(is_right: Predicate) -> Predicate:
    return lambda value: type(value) is list and all(map(is_right, value))


def record(**fields: Predicate) -> Predicate:
    """The values of a dictionary with these keys and no others."""
    return lambda value: (
        type(value) is dict and value.keys() == fields.keys() and all(fields[name](value[name]) for name in fields)
    )


def of_type(kind: type) -> Predicate:
    return lambda value: type(value) is kind


def is_size(value: Any) -> bool:
    return is_count(value) and value <= 2**20  # weights have fewer than 2**63 bytes


def is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def are_ids(value: Any) -> bool:
    return is_id(value) or value != [] and list_of(is_id)(value)


def is_share(value: Any) -> bool:
    return type(value) is float and 0 <= value <= 1


def is_positive(value: Any) -> bool:
    return is_amount(value) and value > 0


# --- config.json ---

SIZES = (
    "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "vocab_size",
)  # fmt: skip
is_flag, is_dtype = of_type(bool), optional(only(*DTYPES.values()))
OF_ALL: dict[str, Predicate] = {
    **dict.fromkeys(SIZES, is_size),
    "attention_dropout": is_share,
    "bos_token_id": optional(is_id),
    "dtype": is_dtype,
    "eos_token_id": optional(are_ids),
    "head_dim": is_size,
    "hidden_act": only("silu"),
    "initializer_range": is_share,
    "layer_types": optional(list_of(only("full_attention"))),
    "mlp_bias": only(False),
    "model_type": of_type(str),
    "pad_token_id": optional(is_id),
    "pretraining_tp": is_count,
    "rms_norm_eps": is_share,
    "rope_parameters": record(rope_type=only("default"), rope_theta=is_positive),
    "rope_scaling": only(None),
    "rope_theta": is_positive,
    "tie_word_embeddings": is_flag,
    "torch_dtype": is_dtype,
    "transformers_version": of_type(str),
    "unk_token_id": optional(is_id),
    "use_cache": is_flag,
}
OF_STOCK = {"attention_bias": only(False), "sliding_window": only(None), KEPT_ENTRY: of_type(dict)}
# A window that is not used has no effect, and neither has the layer where it would begin.
OF_QWEN = {"max_window_layers": is_id, "sliding_window": optional(is_count), "use_sliding_window": only(False)}
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
OF_WEDLM = {
    "architectures": optional(list_of(of_type(str))),
    "attention_bias": is_flag,
    "auto_map": of_type(dict),
    "converted_from": optional(of_type(str)),
    "drafts": optional(record(rank=is_size, modules=list_of(only(*ATTENTION, *MLP)))),
    "mask_row": only(None, "unused", "added"),
    "mask_shift": is_flag,
    "mask_token_id": is_id,
    "mask_trained": is_flag,
    "qk_norm": is_flag,
}
LISTED = {
    "qwen2": OF_ALL | OF_STOCK | OF_QWEN,
    "qwen3": OF_ALL | OF_STOCK | OF_QWEN,
    "llama": OF_ALL | OF_STOCK,
    "mistral": OF_ALL | OF_STOCK,
    MODEL_TYPE: OF_ALL | OF_QWEN | OF_WEDLM,
}
# What the class would fill in otherwise.
NEEDED = {
    "qwen2": ("use_sliding_window",),
    "qwen3": ("use_sliding_window", "head_dim"),
    "llama": (),
    "mistral": ("sliding_window",),
    MODEL_TYPE: ("use_sliding_window", "head_dim", "mask_token_id", "attention_bias", "qk_norm"),
}


def plain_config(fields: dict) -> SimpleNamespace | None:
    """The fields of a WeDLMConfig that describe the model of a config.json, WeDLM or stock; None if any is unusual."""
    model_type = fields["model_type"]
    listed, fields = LISTED[model_type], dict(fields)
    if model_type in STOCK and fields.pop("architectures", None) not in (None, [STOCK[model_type].model_class]):
        return None
    if not all(name in listed and listed[name](value) for name, value in fields.items()):
        return None
    if not all(name in fields for name in (*SIZES, "tie_word_embeddings", *NEEDED[model_type])):
        return None
    own_defaults = {"converted_from": None, "mask_trained": False, "mask_shift": False, "drafts": None}
    config = SimpleNamespace(**{**own_defaults, **fields})
    if model_type in STOCK:
        vars(config).update({"mask_token_id": None, "converted_from": model_type, **STOCK[model_type].wedlm_fields})
    heads, num_layers = config.num_attention_heads, config.num_hidden_layers
    if "head_dim" not in fields:
        if config.hidden_size % heads != 0:
            return None
        config.head_dim = config.hidden_size // heads
    is_usual = (
        config.head_dim % 2 == 0  # rotary embeddings turn pairs
        and heads % config.num_key_value_heads == 0
        and all((fields.get(name) or 0) < config.vocab_size for name in ("mask_token_id", "pad_token_id"))
        and len(fields.get("layer_types") or num_layers * [None]) == num_layers
    )
    return config if is_usual else None


def num_parameters(config: SimpleNamespace) -> int:
    """The number of parameters of the model that a plain config describes."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes = {
        "q_proj": (hidden, queries), "k_proj": (hidden, keys), "v_proj": (hidden, keys), "o_proj": (queries, hidden),
        "gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden),
    }  # fmt: skip
    layer = sum(rows * columns for rows, columns in shapes.values()) + 2 * hidden  # and the norms
    layer += (queries + 2 * keys) * config.attention_bias + 2 * config.head_dim * config.qk_norm
    others = hidden + config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    if config.drafts is not None:
        layer += sum(config.drafts["rank"] * sum(shapes[name]) for name in set(config.drafts["modules"]))
        others += hidden
    return config.num_hidden_layers * layer + others


# --- generation_config.json ---

OF_GENERATION: dict[str, Predicate] = {
    **dict.fromkeys(DEFAULTS, lambda value: True),  # `check_parameters` checks them
    "_from_model_config": is_flag,
    "bos_token_id": optional(is_id),
    "do_sample": is_flag,
    "eos_token_id": optional(are_ids),
    "max_length": is_count,
    "max_new_tokens": is_count,
    "min_p": is_share,
    "output_attentions": only(False),
    "output_hidden_states": only(False),
    "pad_token_id": optional(is_id),
    "repetition_penalty": only(1.0),
    "temperature": lambda value: type(value) is float and is_positive(value),
    "top_k": is_count,
    "top_p": lambda value: is_share(value) and value > 0,
    "transformers_version": of_type(str),
    "use_cache": only(True),
}


def is_plain_generation(fields: dict, decodings: Sequence[str]) -> bool:
    """Whether generation_config.json takes none of a model's decodings away, and slows none down."""
    settings = {**DEFAULTS, **fields}
    try:
        for decoding in decodings:
            check_parameters(SimpleNamespace(**{**settings, "decoding": decoding}))
    except ValueError:
        return False
    is_listed = all(name in OF_GENERATION and OF_GENERATION[name](value) for name, value in fields.items())
    return is_listed and settings["decoding"] in decodings
