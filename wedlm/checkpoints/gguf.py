"""Loads a GGUF file as a model of transformers, whose weights stay in blocks."""

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch
from transformers import (
    ROPE_INIT_FUNCTIONS,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    logging,
)

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.resolve import gguf_path
from wedlm.fused.gguf_file import GgufFile, TensorInfo, Value, check_architecture
from wedlm.fused.model import fuse
from wedlm.fused.packing import ROPE_FACTORS
from wedlm.generation.parameters import is_count

READING = threading.Lock()  # one at a time puts its reader in the place of gguf's
OF_TOKENIZERS = tuple(f"tokenizer.ggml.{name}" for name in ("scores", "token_type", "merges"))  # long arrays
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
COUNTS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "sliding_window",
)  # fmt: skip
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}  # fmt: skip
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def load_gguf(
    name: str | os.PathLike, *, gguf_file: str | None = None, dtype: str | torch.dtype = "float32"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a GGUF file as a transformers model for a CPU, and keeps the weights in the file's blocks.

    The file is mapped into memory, so loading takes a second and several processes share the memory. The model is
    fused, and does not round activations: in float32, its output is the same as that of the model which transformers
    unpacks from the file, up to rounding. It takes adapters. `wedlm.unfuse(model)` makes the blocks ordinary weights.

        model, tokenizer = wedlm.load_gguf("SmolLM2-135M-Instruct-Q4_K_M.gguf")

    Args:
        name (`str` or `os.PathLike`): The path of a file, or a file on the Hub as OWNER/NAME/FILE.gguf.
        gguf_file (`str`, *optional*): The name of the file, if `name` is its folder or repository.
        dtype (`str` or `torch.dtype`, *optional*, defaults to `"float32"`): The dtype of activations, norms and
            biases, float32 or bfloat16.

    Raises:
        `CheckpointError`: if the file cannot be loaded. The message says what to do.
    """
    dtype = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}.get(str(dtype), dtype)
    if dtype not in (torch.float32, torch.bfloat16):
        raise CheckpointError(f"dtype={dtype!r} is not one of float32 and bfloat16; pass one of them.")
    try:
        file = GgufFile(gguf_path(name, gguf_file))
        check_architecture(file)
        config, tokenizer = read_config(file), read_tokenizer(file)
        with as_sentence(f"transformers makes no model of the config of {file.path}"):
            model = without_weights(config, dtype)
            model.generation_config = GenerationConfig.from_model_config(config)
            ends = [int(token) for token in map(file.value, ENDS) if token is not None]
            model.generation_config.eos_token_id = list(dict.fromkeys(ends)) or None
        fuse(model, weights=file)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return model.eval(), tokenizer


class Reader(NamedTuple):
    """What transformers asks of gguf's reader, which takes seconds for the same values."""

    fields: dict[str, Value]
    tensors: list[TensorInfo]


@contextmanager
def as_sentence(what: str) -> Iterator[None]:
    """Makes a sentence of whatever transformers raises, since wrong values raise errors of many kinds."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{what} ({type(error).__name__}: {one_line(error)}); download it again, or give another."
        ) from error


@contextmanager
def read_by(file: GgufFile, without: tuple[str, ...] = ()) -> Iterator[None]:
    """Lets transformers read this file, for which it imports gguf's reader."""
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            f"Loading {file.path} needs the package gguf ({error}); install it by `pip install gguf`."
        ) from error
    reader = Reader(
        {name: value for name, value in file.fields.items() if name not in without}, list(file.tensors.values())
    )
    with READING, as_sentence(f"transformers cannot read the config and the tokenizer of {file.path}"):
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        try:
            with patch.object(gguf, "GGUFReader", lambda *args, **kwargs: reader):
                yield
        finally:
            logging.set_verbosity(verbosity)


def read_config(file: GgufFile) -> PreTrainedConfig:
    with read_by(file, without=OF_TOKENIZERS):
        config = AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name)
    config.name_or_path = str(file.path)  # that adapters record
    width = file.value(f"{file.value('general.architecture')}.attention.key_length")
    if width is not None:  # of Qwen3 transformers does not read it
        config.head_dim = width
    for name in COUNTS:
        if (value := getattr(config, name, None)) is not None and not is_count(value):
            raise CheckpointError(f"{name}={value!r} in {file.path} is not a number of 1 or more; download it again.")
    blocks = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if len(blocks) != config.num_hidden_layers:  # or transformers would make millions, in minutes
        raise CheckpointError(
            f"{file.path} has tensors of {len(blocks)} layers, and by its header {config.num_hidden_layers}; download "
            "it again."
        )
    if ROPE_FACTORS in file.tensors:
        config.rope_parameters = llama3_rope(config, file)
    return config


def llama3_rope(config: PreTrainedConfig, file: GgufFile) -> dict:
    """The parameters of positions that make the factors in a file, which says nothing else of them."""
    info = file.tensors[ROPE_FACTORS]
    factors = file.rows(info).view(torch.float32) if info.type.name == "F32" else torch.ones(1)
    parameters = {"rope_type": "llama3", "rope_theta": config.rope_parameters["rope_theta"], **LLAMA3}
    candidate = copy.deepcopy(config)
    with as_sentence(f"transformers makes no positions of {ROPE_FACTORS} in {file.path}"):
        candidate.rope_parameters = parameters | {"factor": factors.max().item()}
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](candidate)
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        expected = parameters["rope_theta"] ** -exponents / frequencies
    if expected.shape != factors.shape or not torch.allclose(expected, factors, rtol=1e-3):
        raise CheckpointError(
            f"{ROPE_FACTORS} of {file.path} has factors that are not Llama 3's; load the model from its own "
            "checkpoint."
        )
    return candidate.rope_parameters


def read_tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    if "tokenizer.ggml.tokens" not in file.fields:
        raise CheckpointError(f"{file.path} has no tokenizer; download the model from where its file has one.")
    with read_by(file):
        tokenizer = AutoTokenizer.from_pretrained(file.path.parent, gguf_file=file.path.name)
        for name, key in SPECIAL_TOKENS.items():  # transformers 5.17 takes others
            token_id = file.value(f"tokenizer.ggml.{key}")
            if token_id is not None and not 0 <= token_id < len(file.fields["tokenizer.ggml.tokens"].parts):
                raise ValueError(f"{key}={token_id} is not a token")
            if token_id is not None and getattr(tokenizer, f"{name}_id") != token_id:
                setattr(tokenizer, name, tokenizer.convert_ids_to_tokens([token_id])[0])
    return tokenizer


def without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose weights have no memory, and whose other tensors are there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    decoder, embedding = model.base_model, model.get_input_embeddings()
    decoder.rotary_emb = type(decoder.rotary_emb)(config)
    if hasattr(embedding, "embed_scale"):  # of Gemma
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    return model
