"""Loads the model and the tokenizer of a WeDLM checkpoint."""

import os

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, logging

from wedlm.checkpoints.architectures import read_wedlm_config
from wedlm.checkpoints.attach import attach_adapter
from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.resolve import GENERATION_FILE, draft_adapter, read_config, wedlm_folder
from wedlm.fused.model import fuse
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


def load_checkpoint(
    name: str | os.PathLike, dtype: str = "auto", device: str | None = None, *, only_decodes: bool = False
) -> tuple[WeDLMForCausalLM, PreTrainedTokenizerBase]:
    """Loads a WeDLM checkpoint, or a draft adapter with its base. None of the code beside the weights is run.

        model, tokenizer = load_checkpoint("tencent/WeDLM-8B-Instruct", dtype="bfloat16", device="cuda")

    Args:
        name (`str` or `os.PathLike`): A folder, or a name on the Hub. A model with a draft adapter decodes verified by
            default.
        dtype (`str`, *optional*, defaults to `"auto"`): The dtype of the weights; `"auto"` is the one they have on
            disk.
        device (`str`, *optional*): The device of the model; by default the GPU if there is one, otherwise the CPU.
        only_decodes (`bool`, *optional*, defaults to `False`): Whether the model will only decode. Then its weights
            layers are fused.

    Raises:
        `CheckpointError`: whatever is in the way, as one sentence with the remedy.
    """
    folder, adapter = wedlm_folder(name, with_weights=True), draft_adapter(name)
    read_wedlm_config(read_config(name, folder), name)
    if device is not None and device.partition(":")[0] == "meta":
        raise CheckpointError("The device 'meta' holds no weights; choose another, such as 'cpu'.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    logging.disable_progress_bar()
    with Console(stderr=True).status(f"Loading {name}"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # wrong files raise errors of many kinds
            raise CheckpointError(
                f"{name} cannot be loaded ({one_line(error)}); correct it, or copy or download it again."
            ) from error
        if missing := sorted(loading["missing_keys"]):
            raise CheckpointError(
                f"{name} lacks the weight {missing[0]} ({len(missing)} in all); copy or download it again."
            )
        if adapter is not None:
            attach_adapter(model, adapter)
            if (adapter / GENERATION_FILE).exists():
                model.generation_config = GenerationConfig.from_pretrained(adapter)
            else:
                model.generation_config.decoding = "verified"
        try:
            model = model.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # an unknown device, one that torch lacks, or no room on it
            raise CheckpointError(
                f"{name} cannot be put on the device {device!r} ({one_line(error)}); choose another, such as 'cpu'."
            ) from error
        for weight in model.parameters():
            if weight.device.type == "cpu":  # or it would be the file itself, which may become shorter or another
                weight.data = weight.data.clone()
    return (fuse(model) if only_decodes else model), tokenizer
