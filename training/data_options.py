"""What the user chooses about the data."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from wedlm.training.errors import TrainingError


@dataclass
class DataOptions:
    """What rows become; the fields are also arguments of the command line."""

    max_length: int = field(default=2048, metadata={"help": "The most tokens of a row, packed or not."})
    overlong: Literal["truncate", "drop"] = field(
        default="truncate",
        metadata={"help": "What becomes of a sample that is longer than max_length; it is counted."},
    )
    loss_on: Literal["all", "last"] = field(
        default="all", metadata={"help": "The assistant turns of a conversation that have loss."}
    )
    extra_end_tokens: int = field(
        default=0, metadata={"help": "End tokens with loss behind the one that ends an answer or a text."}
    )
    packing: bool = field(
        default=False, metadata={"help": "Put several samples into a row, best fit, none of them cut."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read files while training, without a copy in the cache of datasets."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "Processes that tokenize."})

    def __post_init__(self):
        if self.max_length < 2:
            raise TrainingError(f"max_length={self.max_length} is too small; a row needs at least 2 tokens.")
        if self.extra_end_tokens < 0:
            raise TrainingError(f"extra_end_tokens={self.extra_end_tokens} must be 0 or more.")
        if self.num_proc is not None and self.num_proc < 1:
            raise TrainingError(f"num_proc={self.num_proc} must be 1 or more, or None.")
        for name in ("overlong", "loss_on"):
            choices = get_args(type(self).__dataclass_fields__[name].type)
            if getattr(self, name) not in choices:
                raise TrainingError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, choices))}.")
