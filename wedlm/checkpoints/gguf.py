"""Loads a GGUF file as a model of transformers, whose weights stay in blocks."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from transformers import (
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

READING = threading.Lock()  # one at a time puts its reader in the place of gguf's
OF_TOKENIZERS = tuple(f"tokenizer.ggml.{name}" for name in ("scores", "token_type", "merges"))  # long arrays
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def load_gguf(
    name: str | os.PathLike, *, gguf_file: str | None = None, dtype: str | torch.dtype = "float32"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a GGUF file as a model of transformers for a CPU, whose weights keep the file's blocks.

    The file is mapped into memory, so loading takes a second and processes share it. The model is fused, and computes
    with the weights that the file says and unrounded activations: its texts are those of the model that transformers
    unpacks from the file. It can get adapters; `wedlm.unfuse(model)` makes its weights numbers.

        model, tokenizer = wedlm.load_gguf("SmolLM2-135M-Instruct-Q4_K_M.gguf")

    Args:
        name (`str` or `os.PathLike`): The path of a file, or one on the Hub as OWNER/NAME/FILE.gguf.
        gguf_file (`str`, *optional*): The name of the file, where `name` is its folder or repository.
        dtype (`str` or `torch.dtype`, *optional*, defaults to `"float32"`): The dtype of activations, norms and
            biases, float32 or bfloat16.

    Raises:
        `CheckpointError`: whatever is in the way, as one sentence with the remedy.
    """
    dtype = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}.get(str(dtype), dtype)
    if dtype not in (torch.float32, torch.bfloat16):
        raise CheckpointError(f"dtype={dtype!r} is not one of float32 and bfloat16; pass one of them.")
    file = opened(gguf_path(name, gguf_file))
    config, tokenizer = read_config(file), read_tokenizer(file)
    model = without_weights(config, dtype)
    model.generation_config = GenerationConfig.from_model_config(config)
    try:
        fuse(model, weights=file)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    ends = [token for token in map(file.value, ENDS) if token is not None]
    model.generation_config.eos_token_id = list(dict.fromkeys(ends)) or None
    return model.eval(), tokenizer


def opened(path: Path) -> GgufFile:
    try:
        file = GgufFile(path)
        check_architecture(file)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return file


class Reader(NamedTuple):
    """What transformers asks of gguf's reader, which takes seconds for the same values."""

    fields: dict[str, Value]
    tensors: list[TensorInfo]


@contextmanager
def read_by(file: GgufFile, without: tuple[str, ...] = ()) -> Iterator[None]:
    """Lets transformers read this file, for which it imports gguf's reader; any error becomes a sentence."""
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            f"Loading {file.path} needs the package gguf ({error}); install it by `pip install gguf`."
        ) from error
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        fields = {name: value for name, value in file.fields.items() if name not in without}
        reader = Reader(fields, list(file.tensors.values()))
        with READING, patch.object(gguf, "GGUFReader", lambda *args, **kwargs: reader):
            yield
    except Exception as error:  # wrong values raise errors of many kinds
        raise CheckpointError(
            f"transformers cannot read the config and the tokenizer of {file.path} ({type(error).__name__}: "
            f"{one_line(error)}); download it again, or give another."
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def read_config(file: GgufFile) -> PreTrainedConfig:
    with read_by(file, without=OF_TOKENIZERS):
        config = AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name)
    config._name_or_path = str(file.path)  # that adapters record
    width = file.value(f"{file.value('general.architecture')}.attention.key_length")
    if width is not None:  # of Qwen3 transformers does not read it
        config.head_dim = width
    return config


def read_tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    if "tokenizer.ggml.tokens" not in file.fields:
        raise CheckpointError(f"{file.path} has no tokenizer; download the model from where its file has one.")
    with read_by(file):
        return AutoTokenizer.from_pretrained(file.path.parent, gguf_file=file.path.name)


def without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose weights have no memory, and whose other tensors are there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    decoder, embedding = model.base_model, model.get_input_embeddings()
    decoder.rotary_emb = type(decoder.rotary_emb)(config)
    if hasattr(embedding, "embed_scale"):  # of Gemma
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    return model
