"""What should a step take on GPUs that were not at hand? Arithmetic for docs/arithmetic.md.

Nothing is measured here. The numbers are published ones of GPUs, the shapes of models, and the times that a record of
an H200 adds to reading and computing. The page says them all; evidence.py writes it.
"""

import json
import math
from typing import Any, NamedTuple

from common import QWEN3, RESULTS, SHAPES, markdown

RECORD = json.loads((RESULTS / "gpu" / "steps.json").read_text(encoding="utf-8"))
MEASURED, LAYERS = "qwen3-8b, batch 1", SHAPES["qwen3-8b"]["num_hidden_layers"]
H200_BANDWIDTH = 4.8e12  # published, of the record's GPU


class Card(NamedTuple):
    name: str
    bandwidth: float  # published bytes per second
    flops: float  # published operations per second of dense products of bfloat16, with sums in float32
    memory: float  # bytes


CARDS = (
    Card("A100 80GB SXM", 2.039e12, 312e12, 80e9),
    Card("H100 SXM", 3.35e12, 989e12, 80e9),
    Card("RTX 4090", 1.008e12, 165.2e12, 24e9),
)
H100 = CARDS[1]
LLAMA_70B = {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64}
MODELS = {
    "0.6B": QWEN3 | SHAPES["qwen3-0.6b"],
    "8B": QWEN3 | SHAPES["qwen3-8b"],
    "70B": QWEN3 | LLAMA_70B | {"vocab_size": 128_256},
}
BATCH_SIZES = (1, 8, 32)
CONTEXT, BYTES = 1024, 2  # the tokens of a row before the step, and the bytes of a number
SHARE_OF_BANDWIDTH = RECORD["results"]["bytes_per_second"] / H200_BANDWIDTH
SHARE_OF_FLOPS = 0.5
SHARE_OF_MEMORY = 0.95  # for weights and cache
# Of I-DLM's LoRA for Qwen3-8B in SGLang on an H100: tokens per second of a request without and with it, by requests.
PUBLISHED = {1: (142, 326), 8: (119, 256), 32: (111, 201)}
PUBLISHED_QUERIES, PUBLISHED_RANK = 7, 128
TOKENS_PER_FORWARD = PUBLISHED[1][1] / PUBLISHED[1][0]
ADAPTER_KERNELS = 30  # more of a layer with a draft adapter, counted on a CPU


# --- What a step reads and computes ---


def linear_layers(shape: dict[str, Any]) -> list[tuple[int, int]]:
    """The widths of the inputs and outputs of a decoder layer's linear layers."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = (shape[f"num_{name}_heads"] * shape["head_dim"] for name in ("attention", "key_value"))
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]


def head(shape: dict[str, Any]) -> int:
    return shape["vocab_size"] * shape["hidden_size"]


def weights_read(shape: dict[str, Any]) -> int:
    """The number of weights that a step reads once: those of linear layers and of the head."""
    layer = sum(inputs * outputs for inputs, outputs in linear_layers(shape))
    return shape["num_hidden_layers"] * layer + head(shape)


def adapter_weights(shape: dict[str, Any]) -> int:
    return shape["num_hidden_layers"] * PUBLISHED_RANK * sum(map(sum, linear_layers(shape)))


def cache_entries(shape: dict[str, Any], batch_size: int) -> int:
    """The numbers in the keys and values of the text."""
    return 2 * batch_size * CONTEXT * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]


def num_cards(card: Card, shape: dict[str, Any], batch_size: int) -> int:
    embeddings = 0 if shape.get("tie_word_embeddings") else head(shape)
    numbers = weights_read(shape) + embeddings + cache_entries(shape, batch_size)
    return math.ceil(BYTES * numbers / (SHARE_OF_MEMORY * card.memory))


def reading(card: Card, shape: dict[str, Any], batch_size: int) -> float:
    """Milliseconds."""
    size = BYTES * (weights_read(shape) + cache_entries(shape, batch_size))
    return 1e3 * size / (SHARE_OF_BANDWIDTH * card.bandwidth)


def computing(card: Card, shape: dict[str, Any], batch_size: int, queries: int) -> float:
    """Milliseconds. A query has two operations for each weight, and four in each dimension for each key."""
    attention = 4 * CONTEXT * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"]
    operations = batch_size * queries * (2 * weights_read(shape) + attention)
    return 1e3 * operations / (SHARE_OF_FLOPS * card.flops)


# --- What the record adds ---


def measured(way: str) -> dict[str, Any]:
    return RECORD["results"][f"{MEASURED}, {way}"]


def beside_reading(way: str) -> float:
    """The milliseconds of a captured step above its floor, of each layer."""
    return (measured(way)["milliseconds"]["median"] - measured(way)["floor"]) / LAYERS


def launching(way: str) -> float:
    """The milliseconds of a step that is not captured, of each layer; it waits for its launches."""
    return measured(way)["milliseconds"]["median"] / LAYERS


def of_queries(queries: int) -> str:
    return f"captured, {queries} queries"


def kernel_in_graph() -> float:
    """Milliseconds."""
    way = of_queries(8)
    return beside_reading(way) * LAYERS / measured(f"{way}, launches")["kernels"]


# --- Steps ---


def captured(card: Card, shape: dict[str, Any], batch_size: int, queries: int, fused: bool = False) -> float:
    """The milliseconds of a step that is a CUDA graph."""
    way = f"{'fused, ' * fused}{of_queries(queries)}"
    larger = max(reading(card, shape, batch_size), computing(card, shape, batch_size, queries))
    return larger + shape["num_hidden_layers"] * beside_reading(way)


def ordinary(card: Card, shape: dict[str, Any], batch_size: int, queries: int) -> float:
    """The milliseconds of a step whose kernels Python launches."""
    way = "stock" if queries == 1 else f"verified, {queries} queries"
    return max(captured(card, shape, batch_size, queries), shape["num_hidden_layers"] * launching(way))


def adapted(card: Card, shape: dict[str, Any], batch_size: int) -> float:
    """The milliseconds of a captured step with 8 queries and the published adapter."""
    more = 1e3 * BYTES * adapter_weights(shape) / (SHARE_OF_BANDWIDTH * card.bandwidth)
    more += shape["num_hidden_layers"] * ADAPTER_KERNELS * kernel_in_graph()
    return captured(card, shape, batch_size, 8) + more


# --- The page ---


def cards_table() -> str:
    lines = [
        [card.name, f"{card.bandwidth / 1e12:.2f}", f"{card.flops / 1e12:.0f}", f"{card.memory / 1e9:.0f}"]
        for card in CARDS
    ]
    return markdown(["GPU", "TB per second", "TFLOPS in bfloat16", "GB"], lines, left={"GPU"})


def models_table() -> str:
    lines = [
        [
            name,
            shape["num_hidden_layers"],
            f"{BYTES * weights_read(shape) / 1e9:.1f}",
            f"{BYTES * cache_entries(shape, 1) / 1e9:.2f}",
            *(" / ".join(str(num_cards(card, shape, size)) for size in BATCH_SIZES) for card in CARDS),
        ]
        for name, shape in MODELS.items()
    ]
    header = ["model", "layers", "GB of weights", "GB of cache per sequence", *(card.name for card in CARDS)]
    return markdown(header, lines, left={"model"})


def steps_table() -> str:
    lines = []
    for card in CARDS:
        for name, shape in MODELS.items():
            for size in BATCH_SIZES:
                of = (card, shape, size)
                milliseconds = [
                    reading(*of),
                    *(ordinary(*of, queries) for queries in (1, 8)),
                    *(captured(*of, queries) for queries in (1, 8, 16)),
                    *(captured(*of, queries, fused=True) for queries in (1, 8)),
                ]
                lines.append([card.name, name, size, *(f"{each:.1f}" for each in milliseconds)])
    ways = ["reading", "generate()", "verified, 8", *(f"captured, {queries}" for queries in (1, 8, 16))]
    header = ["GPU", "model", "sequences", *ways, *(f"fused, captured, {queries}" for queries in (1, 8))]
    return markdown(header, lines, left={"GPU", "model"})


def must_write(card: Card, shape: dict[str, Any], batch_size: int, queries: int) -> float:
    """The tokens per forward with which drafts are as fast as token by token, both captured."""
    return captured(card, shape, batch_size, queries) / captured(card, shape, batch_size, 1)


def drafts_table() -> str:
    lines = [
        [
            card.name,
            name,
            *(f"{must_write(card, shape, size, queries):.2f}" for queries in (8, 16) for size in BATCH_SIZES),
        ]
        for card in CARDS
        for name, shape in MODELS.items()
    ]
    cells = [f"{queries} queries, {size} sequence{'s' * (size > 1)}" for queries in (8, 16) for size in BATCH_SIZES]
    return markdown(["GPU", "model", *cells], lines, left={"GPU", "model"})


def adapter_table() -> str:
    lines, shape = [], MODELS["8B"]
    for card in CARDS:
        for size in BATCH_SIZES:
            milliseconds = ordinary(card, shape, size, 1), captured(card, shape, size, 1)
            speeds = [1e3 / each for each in milliseconds]
            speeds.append(1e3 * TOKENS_PER_FORWARD / adapted(card, shape, size))
            without, with_adapter = PUBLISHED[size]
            published = (
                f"{without} without, {with_adapter} with it ({with_adapter / without:.2f}x)" if card == H100 else ""
            )
            times = [f"{speeds[2] / speed:.2f}" for speed in speeds[:2]]
            lines.append([card.name, size, *(f"{speed:.0f}" for speed in speeds), *times, published])
    ways = [
        "generate()",
        "captured",
        "captured, adapter",
        "times generate()",
        "times captured",
        "published",
    ]
    return markdown(["GPU", "sequences", *ways], lines, left={"GPU", "published"})


def shown() -> dict[str, Any]:
    """What the template of the page shows."""
    stock, verified, shape = "stock", "verified, 8 queries", MODELS["8B"]
    launches = {way: measured(f"{way}, launches")["launches"] / LAYERS for way in (stock, verified)}
    alone, together = (with_adapter / without for without, with_adapter in (PUBLISHED[1], PUBLISHED[32]))
    few = [
        max(must_write(card, model, size, queries) for card in CARDS for model in MODELS.values() for size in (1, 8))
        for queries in (8, 16)
    ]
    many = [must_write(card, MODELS[name], 32, 8) for name in ("8B", "70B") for card in CARDS]
    slower = [must_write(card, MODELS[name], 32, 8) for name in ("8B", "70B") for card in CARDS if card != H100]
    larger = [max(reading(H100, shape, 32), computing(H100, shape, 32, queries)) for queries in (1, PUBLISHED_QUERIES)]
    return {
        "cards": cards_table(),
        "models": models_table(),
        "steps": steps_table(),
        "drafts": drafts_table(),
        "adapter": adapter_table(),
        "context": CONTEXT,
        "reached": RECORD["results"]["bytes_per_second"] / 1e12,
        "published": H200_BANDWIDTH / 1e12,
        "share_of_bandwidth": SHARE_OF_BANDWIDTH,
        "share_of_memory": SHARE_OF_MEMORY,
        "stock": launching(stock),
        "stock_launches": launches[stock],
        "stock_launch": 1e3 * launching(stock) / launches[stock],
        "verified": launching(verified),
        "verified_launches": launches[verified],
        "verified_launch": 1e3 * launching(verified) / launches[verified],
        "few": few,
        "many": min(many),
        "slower": [min(slower), max(slower)],
        "uncaptured": launching(verified) / launching(stock),
        "captured": [beside_reading(of_queries(queries)) for queries in (1, 8, 16)],
        "fused": [beside_reading(f"fused, {of_queries(queries)}") for queries in (1, 8)],
        "kernel": 1e3 * kernel_in_graph(),
        "adapter_kernels": ADAPTER_KERNELS,
        "adapter_gigabytes": BYTES * adapter_weights(shape) / 1e9,
        "tokens_per_forward": TOKENS_PER_FORWARD,
        "published_gain": alone,
        "published_many": together,
        "by_operations": alone * larger[0] / larger[1],
        "published_step": 1e3 / PUBLISHED[1][0],
        "published_floor": reading(H100, shape, 1),
        "ours": captured(H100, shape, 1, 1),
        "ours_fused": captured(H100, shape, 1, 1, fused=True),
    }
