"""Draft adapters that others have trained: a LoRA of PEFT that acts where the input is MASK, and nowhere else."""

import math
import os
from typing import NamedTuple

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.utils import load_peft_weights, set_peft_model_state_dict
from transformers import PreTrainedModel

from wedlm.training.draft_lora import DraftLoraConfig, unusual_field


class Published(NamedTuple):
    """What the files of a published adapter do not say."""

    mask_token_id: int
    shift: bool


PUBLISHED = {"yifanyu/I-DLM-8B-lora-r128": Published(mask_token_id=151669, shift=True)}
TAKEN = ("r", "lora_alpha", "base_model_name_or_path", "revision", "task_type")  # fields of the adapter's config


def load_draft_adapter(
    model: PreTrainedModel,
    name: str | os.PathLike,
    mask_token_id: int | None = None,
    shift: bool | None = None,
    **where: str,
) -> PeftModel:
    """Loads a LoRA from PEFT's files as a draft adapter: the model drafts with it, and its output stays the same.

    `PeftModel.from_pretrained()` would let the LoRA change every word. Here it acts only at the MASKs that draft after
    the text, so verified decoding writes what the model writes without the LoRA.

    Args:
        model (`PreTrainedModel`): The base of the adapter.
        name (`str` or `os.PathLike`): A folder, or a name on the Hub.
        mask_token_id (`int`, *optional*): The row of the model's embedding that stands for MASK. You can leave out
            this and `shift` for "yifanyu/I-DLM-8B-lora-r128".
        shift (`bool`, *optional*): Whether a MASK predicts the next token, as in I-DLM, or that of its own position.
        where (`str`): `revision`, `subfolder` or `cache_dir`, for a name on the Hub.

    Returns:
        `PeftModel`: The model with the adapter. Its `save_pretrained()` writes a draft adapter that the commands and
        `PeftModel.from_pretrained()` load.

    Example:

        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", dtype="bfloat16", device_map="cuda")
        model = wedlm.load_draft_adapter(model, "yifanyu/I-DLM-8B-lora-r128")
        model.generate(**inputs, custom_generate=wedlm.verified, max_new_tokens=256)
    """
    known = PUBLISHED.get(str(name))
    mask_token_id = known.mask_token_id if mask_token_id is None and known else mask_token_id
    shift = known.shift if shift is None and known else shift
    for argument, value in (("mask_token_id", mask_token_id), ("shift", shift)):
        if value is None:
            raise ValueError(
                f"{argument}=None: the files of a LoRA do not say it, and it is known for {', '.join(PUBLISHED)} "
                "only; pass it as the adapter was trained."
            )
    config = PeftConfig.from_pretrained(str(name), **where)
    check_is_plain(config, name)
    taken = {field: getattr(config, field) for field in TAKEN}
    targets = config.target_modules
    names = {each.rpartition(".")[2] for each in ([targets] if isinstance(targets, str) else targets or ())}
    if config.use_rslora:  # the scale is lora_alpha / sqrt(r) with it, lora_alpha / r without
        taken["lora_alpha"] *= math.sqrt(config.r)
    config = DraftLoraConfig(
        **taken, target_modules=names, mask_token_id=mask_token_id, mask_shift=shift, inference_mode=True
    )
    weights = load_peft_weights(str(name), device="cpu", **where)
    peft_model = get_peft_model(model, config)
    try:
        loading = set_peft_model_state_dict(peft_model, weights)
        wrong = [*loading.unexpected_keys, *(key for key in loading.missing_keys if "lora_" in key)]
        reason = f"{wrong[0]} is in one of them only" if wrong else None
    except (RuntimeError, ValueError) as error:  # of other shapes, or names
        reason = " ".join(str(error).split())
    if reason is not None:
        peft_model.unload()
        raise ValueError(f"The adapter {name} does not fit this model ({reason}); load it into its own base.")
    return peft_model.eval()


def check_is_plain(config: PeftConfig, name: str | os.PathLike) -> None:
    """Refuses adapters that cannot act at MASK alone."""
    if not isinstance(config, LoraConfig) or isinstance(config, DraftLoraConfig):
        remedy = "PeftModel.from_pretrained() loads it" if isinstance(config, DraftLoraConfig) else "pass a LoRA"
        raise ValueError(f"The adapter {name} has peft_type={str(config.peft_type)!r} and is not a LoRA; {remedy}.")
    if (unusual := unusual_field(config, "use_rslora")) is not None:
        raise ValueError(
            f"{unusual} of the adapter {name} is more than a LoRA on linear layers, which alone can act at MASK and "
            "nowhere else; take an adapter without it."
        )
