"""docs/models.md: writes its tables from what the tests try, and from the shapes of models.

python tests/make_models.py
"""

import re
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from gguf_files import FAMILIES
from stock_families import FITTING, SHARED
from transformers import AutoModelForCausalLM, PreTrainedConfig

from wedlm.checkpoints.architectures import check_layers
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.resolve import STOCK_FAMILIES
from wedlm.fused.gguf_file import BLOCK_TYPES
from wedlm.fused.layer import CLASSES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def name_of(family: str) -> str:
    """That of its classes in transformers."""
    return family.partition(",")[0]


def config_class(family: str) -> type[PreTrainedConfig]:
    return getattr(transformers, f"{name_of(family)}Config")


def is_converted(family: str) -> bool:
    """Whether `wedlm convert` takes the small model that the tests make of a family of transformers."""
    model_type = config_class(family).model_type
    if model_type not in STOCK_FAMILIES:
        return False
    try:
        check_layers(config_class(family)(**SHARED | FITTING[family]).to_dict(), family, model_type)
    except CheckpointError:
        return False
    return True


# --- What works ---

FUSE, GGUF, VERIFIED, ADAPTER, STATIC, BATCH, VLLM = COLUMNS = (
    "`wedlm.fuse`",
    "GGUF file",
    "verified decoding",
    "draft adapter",
    "static cache",
    "batches, `wedlm serve`",
    "vLLM export",
)
OWN = {"WeDLM": "wedlm", "I-DLM": "sdar"}  # families of this package, and their model_type

REAL = "tests/demo/test_real_gguf.py::"
TEXTS = f"{REAL}test_the_texts_of_a_file_are_those_of_its_weights_in_float32"
IN_VLLM = "tests/for_vllm/test_drafters.py::test_greedy_texts_are_those_of_vllm_alone_and_most_drafts_are_accepted"
ON_SMOLLM2 = {  # where these weights are run
    FUSE: "benchmarks/results/real/intel-xeon-amx_float32.json",
    **dict.fromkeys((GGUF, VERIFIED, ADAPTER), TEXTS),
    STATIC: "benchmarks/results/gpu/evidence.json",
    BATCH: f"{REAL}test_a_server_answers_from_a_file",
    VLLM: IN_VLLM,
}
ON_GEMMA = dict.fromkeys((GGUF, VERIFIED), f"{REAL}test_gemma_is_that_of_transformers")
MATRIX = "tests/repository/test_matrix.py::test_a_cell_gives_the_text_of_the_reference_or_a_remedy_that_works"
ON_DEMO = {
    **dict.fromkeys((FUSE, VERIFIED, BATCH), MATRIX),
    ADAPTER: "tests/drafts/test_page.py::test_the_code_runs",
    STATIC: "benchmarks/results/gpu/checks_captured.json",
    VLLM: IN_VLLM,
}

DECODED = {*FITTING, *OWN}
WORKS = {  # with small random weights; tests/repository/test_models.py tries it
    FUSE: {family for family in FITTING if f"{name_of(family)}DecoderLayer" in CLASSES} | {*OWN},
    GGUF: {"Gemma3Text" if family == "gemma3" else family.capitalize() for family in FAMILIES},
    VERIFIED: DECODED,
    ADAPTER: DECODED - {"GPTNeoX", "GPT2"},  # none of their linear layers has a name of Llama's
    STATIC: DECODED,
    BATCH: DECODED,
    VLLM: {family for family in FITTING if is_converted(family)} | {*OWN},
}
UNTRIED = {("Mistral, sliding", GGUF), ("Gemma3", GGUF)}


class Row(NamedTuple):
    """Models with the same cells. `families` are those of the tests; `real` says where which weights are run."""

    models: str
    families: tuple[str, ...]
    weights: str = "random"
    real: dict[str, str] = {}


ROWS = (
    Row("Llama 3.1 8B, 70B, 3.2 1B, 3B, 3.3 70B; TinyLlama, Yi", ("Llama",)),
    Row("SmolLM2 135M", ("Llama",), "SmolLM2-135M-Instruct", ON_SMOLLM2),
    Row("SmolLM2 360M, 1.7B", ("Llama",)),
    Row("Qwen2, Qwen2.5 0.5B to 72B", ("Qwen2",)),
    Row("Qwen3 0.6B to 32B", ("Qwen3",)),
    Row("Mistral 7B v0.3, Nemo 12B", ("Mistral",)),
    Row("Mistral 7B v0.1, whose attention has a sliding window", ("Mistral, sliding",)),
    Row("Gemma 3 270M", ("Gemma3Text",), "Gemma 3 270M as a GGUF file; random", ON_GEMMA),
    Row("Gemma 3 1B", ("Gemma3Text",)),
    Row("Gemma 3 4B, 12B, 27B, for text-only prompts", ("Gemma3",)),
    Row("Gemma 2B, 7B; Gemma 2 2B, 9B, 27B", ("Gemma", "Gemma2")),
    Row("Phi-1.5, Phi-2; Phi-3, Phi-3.5-mini, Phi-4", ("Phi", "Phi3")),
    Row("OLMo 1B, 7B; OLMo 2 1B to 32B", ("Olmo", "Olmo2")),
    Row(
        "SmolLM3 3B; Granite 3 2B, 8B; StarCoder2; Command R7B; OPT",
        ("SmolLM3", "Granite", "Starcoder2", "Cohere2", "OPT"),
    ),
    Row("GPT-2; GPT-NeoX, Pythia", ("GPT2", "GPTNeoX")),
    Row("Mixture of experts: Qwen3-30B-A3B, 235B-A22B; Mixtral; gpt-oss", ("Qwen3Moe", "Mixtral", "GptOss")),
    Row("DeepSeek-V3, DeepSeek-R1", ("DeepseekV3",)),
    Row(
        "Recurrent and hybrid: Mamba, Jamba, Falcon-H1, Qwen3-Next, LFM2",
        ("Mamba", "Jamba", "FalconH1", "Qwen3Next", "Lfm2"),
    ),
    Row("Llama 4; BLOOM; GPT-Neo", ("Llama4Text", "Bloom", "GPTNeo")),
    Row("WeDLM 7B, 8B", ("WeDLM",)),
    Row("The demo checkpoint, a WeDLM of 5.4M", ("WeDLM",), "its own", ON_DEMO),
    Row("I-DLM 8B, 32B", ("I-DLM",)),
)


def cell(row: Row, column: str) -> str:
    if column in row.real:
        return "**real**"
    if (row.families[0], column) in UNTRIED:
        return "not tested"
    (works,) = {family in WORKS[column] for family in row.families}
    return "random" if works else "no"


def models_table() -> str:
    lines = []
    for row in ROWS:
        types = [f"`{OWN.get(family) or config_class(family).model_type}`" for family in row.families]
        lines.append([row.models, ", ".join(types), *(cell(row, column) for column in COLUMNS), row.weights])
    return markdown(["models", "`model_type`", *COLUMNS, "weights in the tests"], lines)


# --- Memory, by arithmetic ---

SHAPE = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size",
)  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
SIZES = {  # as config.json says
    "SmolLM2 135M": ("Llama", (30, 576, 1536, 9, 3, 64, 49_152), {"tie_word_embeddings": True}),
    "Gemma 3 270M": ("Gemma3Text", (18, 640, 2048, 4, 1, 256, 262_144), {}),
    "Qwen3 0.6B": ("Qwen3", (28, 1024, 3072, 16, 8, 128, 151_936), {"tie_word_embeddings": True}),
    "Llama 3.2 1B": ("Llama", (16, 2048, 8192, 32, 8, 64, 128_256), {"tie_word_embeddings": True}),
    "Llama 3.2 3B": ("Llama", (28, 3072, 8192, 24, 8, 128, 128_256), {"tie_word_embeddings": True}),
    "Qwen3 4B": ("Qwen3", (36, 2560, 9728, 32, 8, 128, 151_936), {"tie_word_embeddings": True}),
    "Mistral 7B v0.3": ("Mistral", (32, 4096, 14_336, 32, 8, 128, 32_768), UNTIED),
    "Qwen2.5 7B": ("Qwen2", (28, 3584, 18_944, 28, 4, 128, 152_064), UNTIED),
    "Llama 3.1 8B": ("Llama", (32, 4096, 14_336, 32, 8, 128, 128_256), UNTIED),
    "Qwen3 8B, WeDLM 8B, I-DLM 8B": ("Qwen3", (36, 4096, 12_288, 32, 8, 128, 151_936), UNTIED),
    "Phi-4 14B": ("Phi3", (40, 5120, 17_920, 40, 10, 128, 100_352), UNTIED),
    "Qwen3-30B-A3B": (
        "Qwen3Moe",
        (48, 2048, 6144, 32, 4, 128, 151_936),
        {"num_experts": 128, "moe_intermediate_size": 768, **UNTIED},
    ),
    "Qwen3 32B": ("Qwen3", (64, 5120, 25_600, 64, 8, 128, 151_936), UNTIED),
    "Llama 3.3 70B": ("Llama", (80, 8192, 28_672, 64, 8, 128, 128_256), UNTIED),
}
BLOCKS = {"8-bit blocks (Q8_0)": "Q8_0", "4-bit blocks (Q4_K, Q4_0)": "Q4_K"}


def bytes_of_weights(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    return sum(weight.nbytes for weight in weights_of(config, dtype))


def bytes_in_blocks(config: PreTrainedConfig, name: str) -> float:
    """Matrices lie in blocks, and the weights of norms and biases are float32."""
    (block,) = (block for block in BLOCK_TYPES.values() if block.name == name)
    weights = weights_of(config, torch.float32)
    return sum(weight.numel() * block.size / block.length if weight.ndim > 1 else weight.nbytes for weight in weights)


def weights_of(config: PreTrainedConfig, dtype: torch.dtype) -> list[torch.Tensor]:
    with torch.device("meta"):
        return list(AutoModelForCausalLM.from_config(config, dtype=dtype).parameters())


def bytes_of_cache(config: PreTrainedConfig, dtype: torch.dtype, tokens: int) -> int:
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return numbers * dtype.itemsize * tokens


def memory_table() -> str:
    lines = []
    for name, (family, shape, more) in SIZES.items():
        config = getattr(transformers, f"{family}Config")(**dict(zip(SHAPE, shape, strict=True)), **more)
        sizes = [bytes_of_weights(config, dtype) for dtype in (torch.float32, torch.bfloat16)]
        if family in WORKS[GGUF]:
            sizes += [bytes_in_blocks(config, block) for block in BLOCKS.values()]
        gigabytes = [f"{size / 1e9:.2f}" for size in sizes] + [""] * (4 - len(sizes))
        lines.append([name, *gigabytes, f"{bytes_of_cache(config, torch.bfloat16, 1000) / 1e6:,.0f}"])
    header = ["model", "GB in float32", "bfloat16", *BLOCKS, "MB of KV cache, 1,000 tokens in bfloat16"]
    return markdown(header, lines, "---:")


# --- The page ---


def markdown(header: list[str], lines: list[list[str]], rule: str = "---") -> str:
    rules = ["---", *[rule] * (len(header) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, rules, *lines])


def with_tables(page: str) -> str:
    """The page with the present tables in the places of its own two."""
    tables = iter([models_table(), memory_table()])
    return re.sub(r"(?:^\|.*\n)+", lambda _: next(tables), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
