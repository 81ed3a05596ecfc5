"""The options of the data and of the objective, without torch, for the help of `wedlm train`."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

from wedlm.training.run_errors import TrainingError

MAX_WINDOW = 32  # the most MASKs of a group in draft training
BALANCED = "balanced"  # of ar_loss_weight


def check_choices(options: Any) -> None:  # a dataclass, for which typing has no name
    """Refuses a value of a dataclass that is not among the choices of its field, a Literal."""
    for option in fields(options):
        choices, value = get_args(option.type), getattr(options, option.name)
        if get_origin(option.type) is Literal and value not in choices:
            raise TrainingError(f"{option.name}={value!r} is not a choice; pass {' or '.join(map(repr, choices))}.")


@dataclass
class DataOptions:
    """How records become sequences of tokens; also arguments of `wedlm train`."""

    max_length: int = field(default=2048, metadata={"help": "The most tokens of a sample, and of a packed sequence."})
    overlong: Literal["truncate", "drop"] = field(
        default="truncate",
        metadata={"help": "Truncate or drop samples longer than max_length; the summary counts them."},
    )
    loss_on: Literal["all", "last"] = field(
        default="all", metadata={"help": "Train on all assistant turns of a conversation, or only on the last."}
    )
    extra_end_tokens: int = field(
        default=0, metadata={"help": "The number of end tokens with loss after the one that ends an answer or a text."}
    )
    packing: bool = field(
        default=False, metadata={"help": "Put several whole samples, chosen by best fit, into a sequence."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read files during training, without a copy on disk; needs max_steps."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "The number of processes that tokenize."})

    def __post_init__(self):
        if self.max_length < 2:
            raise TrainingError(f"max_length={self.max_length} is too small; pass at least 2 tokens.")
        if self.extra_end_tokens < 0:
            raise TrainingError(f"extra_end_tokens={self.extra_end_tokens} is negative; pass 0 or more.")
        if self.num_proc is not None and self.num_proc < 1:
            raise TrainingError(f"num_proc={self.num_proc} is not a number of processes; pass 1 or more, or None.")
        check_choices(self)


@dataclass
class ObjectiveOptions:
    """The objective and its loss; `WeDLMTrainingArguments` checks them."""

    objective: Literal["dual_stream", "i-dlm", "draft"] = field(
        default="dual_stream",
        metadata={"help": "'dual_stream', 'i-dlm' (MASKs predict the next token), or 'draft' (a draft adapter)."},
    )
    draft_window: int = field(default=8, metadata={"help": "The most MASKs of a group, with 'draft' and 'i-dlm'."})
    block_size: int = field(
        default=32, metadata={"help": "The tokens of a block of the prediction stream; each block is masked alone."}
    )
    loss_weighting: Literal["weighted", "uniform"] = field(
        default="weighted",
        metadata={"help": "'weighted' weights a masked token by 1/gamma of its block, 'uniform' weights all alike."},
    )
    ar_loss_weight: float | str | None = field(
        default=None,
        metadata={
            "help": "The weight of the autoregressive loss next to a weight of 1 for masked tokens; by default 1.0, "
            "with 'i-dlm' 0.2. 'balanced' makes both parts of the loss equal."
        },
    )
    suffix_mask_probability: float = field(
        default=0.0,
        metadata={
            "help": "The share of blocks that mask their last tokens, as a decoding window does, instead of random "
            "tokens; 0 by default, because the paper does not have it."
        },
    )
    mask_draws: int = field(
        default=1,
        metadata={
            "help": "How often each text is masked in a step, each time differently. More than 1 trains more MASKs "
            "for each pass over the clean text; the paper has 1."
        },
    )
    attn_implementation: str = field(
        default="dual_stream",
        metadata={
            "help": "'dual_stream' is FlexAttention on a GPU and attention in groups of blocks on a CPU, and stores "
            "no mask of all pairs of queries. 'sdpa' and 'eager' store one."
        },
    )
