"""What a training run can be told, beside what transformers' own TrainingArguments take."""

from dataclasses import dataclass, field, fields
from typing import Literal

from transformers import TrainingArguments

from wedlm.modeling_wedlm.dual_stream import FORMS
from wedlm.training.collator import DualStreamCollator
from wedlm.training.data_options import DataOptions


@dataclass
class WeDLMTrainingArguments(DataOptions, TrainingArguments):
    """TrainingArguments with the dual-stream objective's own, and those of the data.

        WeDLMTrainingArguments("out", block_size=32, max_length=2048, packing=True, learning_rate=1e-5, bf16=True)

    The loss is (mlm + ar_loss_weight * ar) / (1 + ar_loss_weight), where mlm scores the masked tokens of the
    prediction stream and ar the next tokens of the memory stream, each a mean over the whole optimizer step.
    """

    block_size: int = field(
        default=32, metadata={"help": "Tokens in a block of the prediction stream; each block is masked by itself."}
    )
    loss_weighting: Literal["weighted", "uniform"] = field(
        default="weighted",
        metadata={"help": "How masked tokens count: 'weighted', by 1/gamma of their block, or 'uniform', alike."},
    )
    ar_loss_weight: float = field(
        default=1.0, metadata={"help": "The weight of the autoregressive loss; the loss over masked tokens has 1."}
    )
    suffix_mask_probability: float = field(
        default=0.0,
        metadata={
            "help": "The share of blocks whose last tokens are masked, as in a decoding window, instead of any. It is "
            "beyond the paper, and therefore 0 by default."
        },
    )
    attn_implementation: str = field(
        default="dual_stream",
        metadata={
            "help": "'dual_stream' takes what suits the device: FlexAttention on a GPU, else groups of blocks, which "
            "never build a mask over all pairs of rows. 'sdpa' and 'eager' build it."
        },
    )
    # The columns are read by the collator, not by the model.
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave it: the collator needs the columns."})

    def __post_init__(self):
        DataOptions.__post_init__(self)
        TrainingArguments.__post_init__(self)
        if self.attn_implementation not in FORMS:
            raise ValueError(
                f"attn_implementation={self.attn_implementation!r} cannot express the attention of the two streams; "
                f"pass one of {', '.join(FORMS)}."
            )
        for name, value in (
            ("label_smoothing_factor", 0),
            ("batch_eval_metrics", False),
            ("eval_do_concat_batches", True),
        ):
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not offered, since forward returns no logits; leave it out."
                )
        self.collator(mask_token_id=0)  # refuses what it cannot do, before anything is read or written
        if self.ar_loss_weight < 0:
            raise ValueError(
                f"ar_loss_weight={self.ar_loss_weight} is negative; pass 0 for none of that loss, or more."
            )
        # Batches differ in width, so no rank can read them for the others and hand them out in one piece.
        if self.accelerator_config.dispatch_batches is None:
            self.accelerator_config.dispatch_batches = False

    def collator(self, mask_token_id: int) -> DualStreamCollator:
        return DualStreamCollator(
            mask_token_id=mask_token_id,
            block_size=self.block_size,
            seed=self.seed if self.data_seed is None else self.data_seed,
            suffix_mask_probability=self.suffix_mask_probability,
            loss_weighting=self.loss_weighting,
            drop_idle_blocks=True,
        )

    def data_options(self) -> DataOptions:
        return DataOptions(**{option.name: getattr(self, option.name) for option in fields(DataOptions)})
