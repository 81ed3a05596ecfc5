"""The user's choices about the data and the objective of a training; torch is not imported."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from wedlm.training.errors import TrainingError

MAX_WINDOW = 32  # the most MASKs of a group in draft training


@dataclass
class DataOptions:
    """Options of `prepare_dataset`, which are also arguments of `wedlm train`.

    Args:
        max_length (`int`, *optional*, defaults to 2048):
            The most tokens of a sample, and of a packed sequence.
        overlong (`str`, *optional*, defaults to `"truncate"`):
            Whether a sample longer than `max_length` is cut (`"truncate"`) or left out (`"drop"`). The summary counts
            both.
        loss_on (`str`, *optional*, defaults to `"all"`):
            Which assistant turns of a conversation have loss: `"all"`, or only the `"last"`.
        extra_end_tokens (`int`, *optional*, defaults to 0):
            How many end tokens with loss follow the one that ends an answer or a text.
        packing (`bool`, *optional*, defaults to `False`):
            Whether several samples share a sequence. Packing is best fit and cuts no sample.
        streaming (`bool`, *optional*, defaults to `False`):
            Whether files are read while training, without a copy in the cache of datasets.
        num_proc (`int`, *optional*):
            The number of processes that tokenize; None for this one alone.
    """

    max_length: int = field(default=2048, metadata={"help": "The most tokens of a sample, and of a packed sequence."})
    overlong: Literal["truncate", "drop"] = field(
        default="truncate",
        metadata={"help": "Truncate or drop a sample that is longer than max_length; the summary counts it."},
    )
    loss_on: Literal["all", "last"] = field(
        default="all", metadata={"help": "The assistant turns of a conversation that have loss."}
    )
    extra_end_tokens: int = field(
        default=0, metadata={"help": "End tokens with loss after the one that ends an answer or a text."}
    )
    packing: bool = field(
        default=False, metadata={"help": "Put several samples into a sequence, best fit, none of them cut."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read files while training, without a copy in the cache of datasets."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "The number of processes that tokenize."})

    def __post_init__(self):
        if self.max_length < 2:
            raise TrainingError(f"max_length={self.max_length} is too small; pass at least 2 tokens.")
        if self.extra_end_tokens < 0:
            raise TrainingError(f"extra_end_tokens={self.extra_end_tokens} is negative; pass 0 or more.")
        if self.num_proc is not None and self.num_proc < 1:
            raise TrainingError(f"num_proc={self.num_proc} is no number of processes; pass 1 or more, or None.")
        for name in ("overlong", "loss_on"):
            choices = get_args(type(self).__dataclass_fields__[name].type)
            if getattr(self, name) not in choices:
                given = getattr(self, name)
                raise TrainingError(f"{name}={given!r} is not a choice; pass {' or '.join(map(repr, choices))}.")


@dataclass
class ObjectiveOptions:
    """The arguments of the objective, which `WeDLMTrainingArguments` describes and checks."""

    objective: Literal["dual_stream", "draft"] = field(
        default="dual_stream", metadata={"help": "'dual_stream', or 'draft' for a draft adapter."}
    )
    draft_window: int = field(default=8, metadata={"help": "The most MASKs of a group for a draft adapter."})
    block_size: int = field(
        default=32, metadata={"help": "Tokens of a block of the prediction stream; each block is masked by itself."}
    )
    loss_weighting: Literal["weighted", "uniform"] = field(
        default="weighted",
        metadata={"help": "The weight of a masked token: 'weighted', 1/gamma of its block, or 'uniform', 1."},
    )
    ar_loss_weight: float = field(
        default=1.0,
        metadata={"help": "The weight of the autoregressive loss; the loss of masked tokens has weight 1."},
    )
    suffix_mask_probability: float = field(
        default=0.0,
        metadata={
            "help": "The share of blocks that mask their last tokens, as in a decoding window, instead of random "
            "ones; 0 by default, because the paper does not have it."
        },
    )
    attn_implementation: str = field(
        default="dual_stream",
        metadata={
            "help": "'dual_stream' is FlexAttention on a GPU and attention in groups of blocks elsewhere; it never "
            "holds a mask of all pairs of queries. 'sdpa' and 'eager' hold one."
        },
    )
