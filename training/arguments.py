"""The arguments of WeDLMTrainer: transformers' TrainingArguments, and those of the objective and the data."""

import math
from dataclasses import dataclass, field, fields

import torch
from transformers import TrainingArguments

from wedlm.generation.transformers_internals import rename_checkpointing
from wedlm.training.collator import DualStreamCollator
from wedlm.training.data_options import BALANCED, MAX_WINDOW, DataOptions, ObjectiveOptions
from wedlm.training.draft_collator import DraftCollator, IDLMCollator
from wedlm.training.dual_stream import MASKS


@dataclass
class WeDLMTrainingArguments(ObjectiveOptions, DataOptions, TrainingArguments):
    """TrainingArguments with the arguments of the objective and of the data.

    The loss is (mlm + ar_loss_weight * ar) / (1 + ar_loss_weight). Here mlm is the loss of the masked tokens in the
    prediction stream, and ar is the next-token loss in the memory stream; both are means over the optimizer step.
    `objective="i-dlm"` masks all tokens of an answer, and a MASK predicts the next token. `objective="draft"` trains a
    draft adapter by the loss of `wedlm.training.draft_loss`, which is also a mean over the optimizer step.

    `ObjectiveOptions` and `DataOptions` describe WeDLM's own arguments; all others are those of `TrainingArguments`.

    Example:

        WeDLMTrainingArguments("out", block_size=32, max_length=2048, packing=True, learning_rate=1e-5, bf16=True)
    """

    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Leave it at False: the collator needs columns that the model does not take."}
    )

    def __post_init__(self):
        DataOptions.__post_init__(self)
        # Without it transformers refuses bf16 where there is no accelerator.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        rename_checkpointing(self)
        TrainingArguments.__post_init__(self)
        for name in ("gradient_accumulation_steps", "per_device_train_batch_size", "per_device_eval_batch_size"):
            if (number := getattr(self, name)) < 1:
                raise ValueError(f"{name}={number} leaves nothing to train on; pass 1 or more.")
        if self.attn_implementation not in MASKS:
            raise ValueError(
                f"attn_implementation={self.attn_implementation!r} cannot express the attention of the two streams; "
                f"pass one of {', '.join(MASKS)}."
            )
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor} is not supported, because the model returns "
                "its loss and no logits; leave it out."
            )
        if not 2 <= self.draft_window <= MAX_WINDOW:
            raise ValueError(
                f"draft_window={self.draft_window} is not from 2 to {MAX_WINDOW}: the first MASK of a group is never "
                "a draft; pass a number in between, 8 by default."
            )
        self.collator(mask_token_id=0)  # raises its errors before anything is read or written
        if self.ar_loss_weight is None:
            self.ar_loss_weight = 0.2 if self.objective == "i-dlm" else 1.0
        elif self.ar_loss_weight != BALANCED:
            self.ar_loss_weight = weight_of(self.ar_loss_weight)
        # Each rank reads its own batches: they differ in width, so one rank cannot dispatch them in one tensor.
        if self.accelerator_config.dispatch_batches is None:
            self.accelerator_config.dispatch_batches = False

    def collator(self, mask_token_id: int, mask_shift: bool = False) -> DualStreamCollator | DraftCollator:
        seed = self.seed if self.data_seed is None else self.data_seed
        if self.objective == "draft":
            return DraftCollator(mask_token_id, self.draft_window, seed, mask_shift)
        if self.objective == "i-dlm":
            return IDLMCollator(mask_token_id, self.draft_window, seed)
        return DualStreamCollator(
            mask_token_id=mask_token_id,
            block_size=self.block_size,
            seed=seed,
            suffix_mask_probability=self.suffix_mask_probability,
            loss_weighting=self.loss_weighting,
            mask_draws=self.mask_draws,
            drop_idle_blocks=True,
        )

    def data_options(self) -> DataOptions:
        return DataOptions(**{option.name: getattr(self, option.name) for option in fields(DataOptions)})


def weight_of(value: float | str) -> float:
    """The value of ar_loss_weight, which the command line gives as text."""
    try:
        if 0 <= (weight := float(value)) < math.inf:
            return weight
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"ar_loss_weight={value} is not a weight; pass a number from 0, which leaves the autoregressive loss out, or "
        f"{BALANCED!r}."
    )
