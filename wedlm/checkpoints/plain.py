"""Plain checkpoints, whose facts follow from their configs; for others a model is imported and built, in seconds.

A plain checkpoint builds, and asks for nothing that a decoding refuses or that makes it slower.
"""

from itertools import starmap
from operator import mul
from types import SimpleNamespace

from wedlm.generation.parameters import DEFAULTS, check_parameters, is_amount, is_count
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
MAX_SIZE = 2**20  # so that the bytes of every weight can be counted in 64 bits
# Fields of a plain config that may have any value which WeDLMConfig accepts.
FREE = {
    "_name_or_path",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "auto_map",
    "base_model_tp_plan",  # transformers 5.17 sets it where embeddings are tied
    "bos_token_id",
    "converted_from",
    "dtype",
    "eos_token_id",
    "mask_row",
    "mask_trained",
    "mask_token_id",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "pretraining_tp",
    "qk_norm",
    "rms_norm_eps",
    "sliding_window",  # layer_types says whether it is used
    "tie_word_embeddings",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "use_sliding_window",
}
CHECKED = {*SIZES, "drafts", "initializer_range", "layer_types", "pad_token_id", "rope_parameters"}


def is_plain(config: WeDLMConfig) -> bool:
    """Whether a model can be built from a config without doubt, and decodes in parallel if it has a MASK token."""
    defaults, rope = vars(WeDLMConfig()), config.rope_parameters or {}
    changed = {name for name, value in vars(config).items() if value != defaults.get(name)}
    return (
        changed <= FREE | CHECKED
        and all(is_count(getattr(config, name)) and getattr(config, name) <= MAX_SIZE for name in SIZES)
        and rope.keys() == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
        and is_amount(rope["rope_theta"])
        and rope["rope_theta"] < 2**63
        and set(config.layer_types) == {"full_attention"}
        and (config.pad_token_id is None or 0 <= config.pad_token_id < config.vocab_size)
        and is_amount(config.initializer_range)
        and (config.drafts is None or is_plain_draft_adapter(**config.drafts))
    )


def is_plain_draft_adapter(rank: object = None, modules: object = None, **others: object) -> bool:
    has_names = isinstance(modules, list) and all(isinstance(name, str) for name in modules)
    return is_count(rank) and rank <= MAX_SIZE and has_names and not others


def number_of_parameters(config: WeDLMConfig) -> int:
    """The number of parameters of the model of a plain config."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    linear_layers = {  # inputs and outputs
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    layer = sum(starmap(mul, linear_layers.values())) + 2 * hidden
    if config.attention_bias:
        layer += queries + 2 * keys
    if config.qk_norm:
        layer += 2 * config.head_dim
    whole = hidden + config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    if config.drafts is not None:
        sides = [sum(sizes) for name, sizes in linear_layers.items() if name in config.drafts["modules"]]
        layer += config.drafts["rank"] * sum(sides)
        whole += hidden
    return whole + config.num_hidden_layers * layer


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def is_off(value: object) -> bool:
    return value is False


def is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_end(value: object) -> bool:
    return is_token(value) or isinstance(value, list) and value != [] and all(map(is_token, value))


# Fields of a plain generation_config.json, beside the parameters of decoding. No processor that reads the text
# comes from them.
PLAIN_GENERATION = {
    "_from_model_config": is_flag,
    "bos_token_id": is_token,
    "do_sample": is_flag,
    "eos_token_id": is_end,
    "max_length": is_count,
    "max_new_tokens": is_count,
    "output_attentions": is_off,
    "output_hidden_states": is_off,
    "pad_token_id": is_token,
    "temperature": is_amount,
    "top_k": is_amount,
    "top_p": is_amount,
    "transformers_version": lambda value: isinstance(value, str),
    "use_cache": is_flag,
}


def is_plain_generation(fields: dict) -> bool:
    """Whether the fields of a generation_config.json are accepted by every decoding, and make none slower."""
    given = DEFAULTS | fields
    try:
        check_parameters(SimpleNamespace(**given))
        check_parameters(SimpleNamespace(**given | {"decoding": "verified"}))  # which refuses more
    except ValueError:
        return False
    others = fields.keys() - DEFAULTS.keys()
    return others <= PLAIN_GENERATION.keys() and all(PLAIN_GENERATION[name](fields[name]) for name in others)
