"""`wedlm info`: the facts about a checkpoint, without its weights."""

import math
from collections import Counter
from pathlib import Path

from wedlm.checkpoints.architectures import family_of
from wedlm.checkpoints.facts import Facts, read_facts
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    GENERATION_FILE,
    described_drafts,
    gguf_path,
    how_to_convert,
    is_gguf,
)
from wedlm.checkpoints.shards import read_json
from wedlm.fused.gguf_file import ARCHITECTURES, GgufFile, check_architecture
from wedlm.fused.native import described_product
from wedlm.generation.parameters import AS_IT_IS, DEFAULTS, says_shifted
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

BYTES_IN_MEMORY = {"float32": 4, "bfloat16": 2}  # of a number
CACHED_TOKENS = 1000
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def info(name: str) -> None:
    """Prints the facts about a checkpoint, a line each."""
    if is_gguf(name):
        lines = described_gguf(gguf_path(name))
    else:
        facts = read_facts(name)
        lines = described(facts)
        if facts.adapter is not None:
            lines.insert(1, ("draft adapter", described_adapter(name, facts.adapter)))
    width = max(len(title) for title, _ in lines)
    for title, value in lines:
        print(f"{title:<{width}}  {value}")


def described(facts: Facts) -> list[tuple[str, str]]:
    config = facts.config
    family = family_of(config)
    is_wedlm = facts.model_type == MODEL_TYPE
    heads = f"{config.num_attention_heads} heads and {config.num_key_value_heads} key-value heads of {config.head_dim}"
    result = [
        ("checkpoint", facts.name),
        ("kind", f"WeDLM in the style of {family}" if is_wedlm else f"{family}, not WeDLM"),
        ("parameters", f"{facts.parameters:,}"),
        ("shape", f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {heads}"),
        ("vocabulary", f"{config.vocab_size:,} tokens{'' if facts.has_tokenizer else ', no tokenizer'}"),
        ("context", f"{config.max_position_embeddings:,} tokens"),
        ("MASK token", mask(facts)),
        ("products of few rows", described_product()),
        ("on disk", on_disk(facts)),
        ("memory of the weights", in_memory(facts.weight_bytes)),
        (
            f"memory of the cache, {CACHED_TOKENS:,} tokens",
            in_memory(lambda itemsize: facts.cache_bytes(itemsize, CACHED_TOKENS)),
        ),
    ]
    decodings = "decodings", ", ".join(facts.decodings)
    if not is_wedlm:
        what = (
            f"it decodes as it is, by `wedlm generate {facts.name} PROMPT`; for a training in MASKs, "
            f"{how_to_convert(facts.name, facts.model_type)}."
        )
        return [*result, decodings, ("what to do", what)]
    return [
        *result,
        ("generation", settings(facts.generation)),
        *([] if config.drafts is None else [("draft adapter", f"contained, {rank_and_layers(config.drafts)}")]),
        decodings,
        ("default decoding", default_decoding(facts)),
        ("its own code", "travels with it" if getattr(config, "auto_map", None) else "none, it loads where wedlm is"),
        *(("note", note) for note in facts.notes),
    ]


def described_gguf(path: Path) -> list[tuple[str, str]]:
    file = GgufFile(path)
    architecture = check_architecture(file)

    def value(name: str) -> int:
        return file.value(f"{architecture}.{name}") or 0

    layers, width, heads = value("block_count"), value("embedding_length"), value("attention.head_count")
    key_heads = value("attention.head_count_kv") or heads
    head_width = value("attention.key_length") or width // max(heads, 1)
    tokens = file.fields.get("tokenizer.ggml.tokens")
    blocks: Counter[str] = Counter()
    for info in file.tensors.values():
        blocks[info.type.name] += info.num_bytes
    total = sum(blocks.values())
    shares = ", ".join(f"{name} {100 * share / total:.0f} %" for name, share in blocks.most_common())
    cached = 2 * layers * key_heads * head_width * CACHED_TOKENS
    return [
        ("checkpoint", str(path)),
        ("kind", f"GGUF file of {ARCHITECTURES[architecture]}"),
        ("parameters", f"{sum(math.prod(info.shape) for info in file.tensors.values()):,}"),
        ("shape", f"{layers} layers, {width} wide, {heads} heads and {key_heads} key-value heads of {head_width}"),
        ("vocabulary", "no tokenizer" if tokens is None else f"{len(tokens.parts):,} tokens"),
        ("context", f"{value('context_length'):,} tokens"),
        ("products of few rows", described_product()),
        ("blocks", f"{shares} of {size(total)}"),
        ("memory of the weights", f"{size(total)}, which processes share"),
        (f"memory of the cache, {CACHED_TOKENS:,} tokens", in_memory(lambda itemsize: itemsize * cached)),
        ("decodings", ", ".join(AS_IT_IS)),
        ("what to do", f"it decodes as it is, by `wedlm generate {path} PROMPT` or `wedlm serve {path}`"),
    ]


def described_adapter(name: str, folder: Path) -> str:
    layers = rank_and_layers(described_drafts(read_json(folder / ADAPTER_FILE)))
    return f"{name}: {layers}, {size((folder / ADAPTER_WEIGHTS).stat().st_size)}"


def default_decoding(facts: Facts) -> str:
    """The decoding of a call that names none, and where that comes from."""
    decoding, config, adapter = facts.generation["decoding"], facts.config, facts.adapter
    if decoding not in facts.decodings:
        return f"{decoding}, which generate() refuses here; pass another, or change {GENERATION_FILE}"
    if "decoding" not in facts.generation_file:
        reason = "its MASKs predict the token behind them" if says_shifted(config) else "as in the paper"
        result = f"{decoding}, {reason}: no {GENERATION_FILE} names another"
    elif adapter is None:
        result = f"{decoding}: its {GENERATION_FILE} says so"
    elif (adapter / GENERATION_FILE).exists():
        result = f"{decoding}: the adapter's {GENERATION_FILE} says so"
    else:
        result = f"{decoding}: the adapter has no {GENERATION_FILE} that names another"
    if config.converted_from is None or config.mask_trained or config.drafts is not None or adapter is not None:
        return result
    return f"{result}; converted from {config.converted_from}, so streaming writes nonsense before a training"


def rank_and_layers(drafts: dict) -> str:
    return f"rank {drafts['rank']} on {', '.join(sorted(drafts['modules']))}"


def mask(facts: Facts) -> str:
    if facts.config.mask_token_id is None:
        return "none"
    return " ".join(filter(None, [str(facts.config.mask_token_id), facts.mask_token]))


def on_disk(facts: Facts) -> str:
    if not facts.shards:
        return "no weights here"
    kinds = ", ".join(f"{size(count)} {dtype}" for dtype, count in facts.bytes_on_disk().items())
    return f"{kinds}, in {len(facts.shards)} file{'s' * (len(facts.shards) != 1)}"


def in_memory(num_bytes) -> str:
    return ", ".join(f"{size(num_bytes(itemsize))} {dtype}" for dtype, itemsize in BYTES_IN_MEMORY.items())


def size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


def settings(generation: dict) -> str:
    return ", ".join(f"{name}={generation[name]}" for name in (*DEFAULTS, *SAMPLING) if name in generation)
