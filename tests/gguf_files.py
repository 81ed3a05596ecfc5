"""Writes tiny GGUF files of the families that load_gguf knows, and random blocks of weights."""

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from gguf.constants import GGML_QUANT_SIZES
from transformers.convert_slow_tokenizer import bytes_to_unicode

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS = 256, 512, 2, 4, 2
HEAD_WIDTHS = {"qwen3": 128}  # of qwen3 transformers reads none from a file, and takes 128
ARCHITECTURES = {"mistral": "llama"}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HALVES = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}  # of others (0,)
SIZES = {  # of scales, which make weights of about 0.1
    "Q4_0": 4e-2, "Q4_1": 2e-2, "Q5_0": 2e-2, "Q5_1": 1e-2, "Q8_0": 2e-3, "Q4_K": 5e-4, "Q5_K": 2e-4, "Q6_K": 1e-4
}  # fmt: skip
MERGES = ["t h", "th e", "i n", "Ġ the", "e r", "Ġ a", "a n", "an d", "o n"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL]
BOS, EOS = TOKENS.index("<|im_start|>"), TOKENS.index("<|im_end|>")
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def random_blocks(type, rows, inputs, seed=0):
    """Rows of weights whose bits are random and whose scales are finite, `[rows, bytes]`."""
    generator = np.random.default_rng(seed)
    if type in PLAIN:
        return torch.from_numpy(0.1 * generator.standard_normal((rows, inputs))).to(PLAIN[type]).view(torch.uint8)
    length, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type]]
    blocks = generator.integers(0, 256, (rows, inputs // length, num_bytes), dtype=np.uint8)
    for place in HALVES.get(type, (0,)):
        scales = SIZES[type] * generator.uniform(-1, 1, (rows, inputs // length, 1))
        blocks[:, :, place : place + 2] = scales.astype(np.float16).view(np.uint8)
    return torch.from_numpy(blocks.reshape(rows, -1))


def shapes_of(family, tied):
    """The tensors of a file by name, as torch counts."""
    width = HEAD_WIDTHS.get(family, HIDDEN // HEADS)
    queries, keys = HEADS * width, KEY_HEADS * width
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = len(TOKENS), HIDDEN
    of_layer = {
        "attn_norm": (HIDDEN,), "attn_q": (queries, HIDDEN), "attn_k": (keys, HIDDEN), "attn_v": (keys, HIDDEN),
        "attn_output": (HIDDEN, queries), "ffn_norm": (HIDDEN,), "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    if family in ("qwen3", "gemma3"):
        of_layer |= {"attn_q_norm": (width,), "attn_k_norm": (width,)}
    if family == "gemma3":
        of_layer |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        if family == "qwen2":
            shapes |= {f"blk.{layer}.{name}.bias": of_layer[name][:1] for name in ("attn_q", "attn_k", "attn_v")}
    return shapes


def packed(type, shape, seed):
    """Weights in blocks as a quantizer makes them, where there is one."""
    if type.endswith("_K"):  # which the package does not make
        return random_blocks(type, *shape, seed).numpy()
    numbers = 0.1 * np.random.default_rng(seed).standard_normal(shape)
    return quantize(numbers.astype(np.float32), GGMLQuantizationType[type])


def write_gguf(path, family="llama", type="Q8_0", types=(), tied=None, change=None, tokenizer=True, fields=()):
    """Writes a file of random weights, and returns its path.

    Args:
        type: The blocks of linear layers and embeddings; those of some tensors are others by `types`, as
            {"ffn_down": "Q6_K"}.
        change: Gets the tensors that are written, {name: (type, array)}, and changes them.
        fields: More values of the header, {name: number or text}, in place of those that there are.
    """
    architecture, tensors = ARCHITECTURES.get(family, family), {}
    for seed, (name, shape) in enumerate(shapes_of(family, family == "gemma3" if tied is None else tied).items()):
        if len(shape) == 1:
            center = 1.0 if name.endswith("norm.weight") else 0.0
            numbers = center + 0.3 * np.random.default_rng(seed).standard_normal(shape)
            tensors[name] = "F32", numbers.astype(np.float32)
        else:
            of_name = dict(types).get(name.split(".")[-2], type)
            tensors[name] = of_name, packed(of_name, shape, seed)
    if change is not None:
        change(tensors)
    writer = GGUFWriter(path, architecture)
    for name, value in header_of(family, architecture, tokenizer, dict(fields)).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[value.__class__](name, value)
    for name, (of_name, array) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=GGMLQuantizationType[of_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header_of(family, architecture, tokenizer, more):
    width = HEAD_WIDTHS.get(family, HIDDEN // HEADS)
    shape = {
        "block_count": LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS, "attention.key_length": width,
        "attention.value_length": width, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": width,
        "rope.freq_base": 10000.0,
    }  # fmt: skip
    if family == "gemma3":
        shape["attention.sliding_window"] = 16
    fields = {"general.name": "mistral" if family == "mistral" else "tiny"}
    fields |= {f"{architecture}.{name}": value for name, value in shape.items()}
    if tokenizer:
        of_words, of_others = int(TokenType.NORMAL), int(TokenType.CONTROL)
        fields |= {
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [of_others if token in SPECIAL else of_words for token in TOKENS],
            "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.bos_token_id": BOS, "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.chat_template": TEMPLATE,
        }  # fmt: skip
    return fields | more
