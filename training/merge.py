"""Merges a LoRA adapter into the checkpoint that it was trained on."""

import json
import re
from pathlib import Path

from huggingface_hub import hf_hub_download

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.new_folder import check_out, complete_or_absent
from wedlm.checkpoints.resolve import HUB_NAME

ADAPTER_FILE = "adapter_config.json"


def merge_adapter(adapter: str, out: str, *, overwrite: bool = False) -> Path:
    """Writes the checkpoint that an adapter was trained on, with the adapter folded into its weights.

    Args:
        adapter (`str`): The folder of the adapter, as PEFT or `wedlm train` saved it.
        out (`str`): The folder that the merged checkpoint becomes, with its code and tokenizer.
        overwrite (`bool`, *optional*, defaults to `False`): Whether a checkpoint in `out` is replaced.

    Returns:
        `Path`: The folder.

    Example:

        merge_adapter("out/lora", "merged")
    """
    out = check_out(out, overwrite)
    base = base_of(adapter)
    # These import torch, and need not for an adapter that cannot be merged.
    from peft import PeftModel
    from transformers import AutoTokenizer

    from wedlm import WeDLMForCausalLM

    try:
        # The checkpoint is not quantized here, even if it was while the adapter was trained.
        model = WeDLMForCausalLM.from_pretrained(base, dtype="auto")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {base}, which {adapter} was trained on, cannot be loaded ({one_line(error)}); put it "
            "there, or correct base_model_name_or_path in adapter_config.json."
        ) from error
    try:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
        # Trainer saves the tokenizer, chat template included, beside the adapter.
        has_tokenizer = (Path(adapter) / "tokenizer_config.json").exists()
        tokenizer = AutoTokenizer.from_pretrained(adapter if has_tokenizer else base, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{adapter} cannot be merged ({one_line(error)}); train or copy it again.") from error
    with complete_or_absent(out, overwrite) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return out


def base_of(adapter: str) -> str:
    """Returns the checkpoint that an adapter was trained on: a folder, or a name on the Hub."""
    try:
        is_on_hub = not Path(adapter).exists() and re.fullmatch(HUB_NAME, adapter)
        file = Path(hf_hub_download(adapter, ADAPTER_FILE) if is_on_hub else Path(adapter) / ADAPTER_FILE)
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{adapter} is no adapter of PEFT ({one_line(error)}); give the folder it was saved to."
        ) from error
    if base and (Path(base).is_dir() or re.fullmatch(HUB_NAME, base)):
        return base
    place = f"there is no folder {Path(base).absolute()}" if base else "its name is missing"
    raise CheckpointError(
        f"The checkpoint {base}, which {adapter} was trained on, cannot be loaded ({place}); put it there, or correct "
        "base_model_name_or_path in adapter_config.json."
    )
