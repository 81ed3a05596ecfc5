"""Merges a LoRA adapter into the checkpoint that it was trained on."""

import os
from pathlib import Path

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.new_folder import check_out, complete_or_absent
from wedlm.checkpoints.resolve import base_of, checkpoint_folder, draft_adapter


def merge_adapter(adapter: str, out: str | os.PathLike, *, overwrite: bool = False) -> Path:
    """Writes the checkpoint that an adapter was trained on, with the adapter folded into its weights."""
    out = check_out(out, overwrite)
    base = base_of(adapter)
    if draft_adapter(adapter) is not None:
        raise CheckpointError(
            f"{adapter} is a draft adapter, which cannot be merged: it acts where the input is MASK only, and merged "
            "weights would act everywhere and change the text; use it as it is, as MODEL of a command."
        )
    # These import torch, and need not for an adapter that cannot be merged.
    from peft import PeftModel

    from wedlm import WeDLMForCausalLM
    from wedlm.checkpoints.load import read_model
    from wedlm.checkpoints.tokenizer_files import load_tokenizer

    try:
        # The checkpoint is not quantized here, even if it was while the adapter was trained.
        folder = checkpoint_folder(base, with_weights=True)
        model = read_model(WeDLMForCausalLM, base, folder, dtype="auto")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {base}, which {adapter} was trained on, cannot be loaded ({one_line(error)}); put it "
            "there, or correct base_model_name_or_path in adapter_config.json."
        ) from error
    try:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
        model.config.mask_trained = True
        # Trainer saves the tokenizer, chat template included, beside the adapter.
        has_tokenizer = (Path(adapter) / "tokenizer_config.json").exists()
        tokenizer = load_tokenizer(Path(adapter) if has_tokenizer else folder, adapter if has_tokenizer else base)
    except Exception as error:  # wrong fields of adapter_config.json raise errors of many kinds
        raise CheckpointError(f"{adapter} cannot be merged ({one_line(error)}); train or copy it again.") from error
    with complete_or_absent(out, overwrite) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return out
