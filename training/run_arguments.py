"""The arguments of `wedlm train`, read from a YAML file and the command line."""

import difflib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from wedlm.training.run_errors import TrainingError, as_training_errors

if TYPE_CHECKING:  # it imports torch, as does `parse`; `wedlm train --help` needs the class alone
    from wedlm.training.arguments import WeDLMTrainingArguments


@dataclass
class RunArguments:
    """The arguments of `wedlm train` that WeDLMTrainer does not have: the model, the data and LoRA."""

    model: str = field(metadata={"help": "A WeDLM checkpoint, or one of Qwen2, Qwen3, Llama or Mistral to convert."})
    train_data: list[str] = field(metadata={"help": "Files of JSON Lines, JSON or Parquet, folders or patterns."})
    eval_data: list[str] = field(default_factory=list, metadata={"help": "Files, folders or patterns to evaluate on."})
    random_weights: bool = field(default=False, metadata={"help": "Train from scratch: only the config is read."})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto",
        metadata={"help": "The dtype of the weights. 'auto' is float32, or with LoRA the dtype of the checkpoint."},
    )
    lora_r: int = field(default=0, metadata={"help": "The rank of the LoRA; 0 trains the whole model."})
    lora_alpha: int | None = field(default=None, metadata={"help": "The scale of the LoRA; by default twice lora_r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "The dropout before the LoRA's matrices."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": "The names of the layers that get a LoRA."},
    )
    load_in_4bit: bool = field(default=False, metadata={"help": "QLoRA: frozen weights in nf4 (bitsandbytes)."})
    preview: bool = field(default=False, metadata={"help": "Print samples and one masked block, and train nothing."})
    overwrite: bool = field(default=False, metadata={"help": "Replace the run in output_dir."})


def parse(arguments: list[str]) -> "tuple[RunArguments, WeDLMTrainingArguments]":
    """Reads and checks `CONFIG.yaml [--argument value ...]`. The command line overrides the file."""
    from transformers import HfArgumentParser

    from wedlm.training.arguments import WeDLMTrainingArguments

    path, *rest = arguments if arguments and not arguments[0].startswith("--") else [None, *arguments]
    content = {} if path is None else read_fields(path)
    words = [word for name, value in content.items() for word in as_words(name, value)] + rest
    kinds = (RunArguments, WeDLMTrainingArguments)
    check_names(words, {item.name for kind in kinds for item in fields(kind) if item.init})
    parser = HfArgumentParser(kinds, allow_abbrev=False, add_help=False)

    def refuse(message: str):
        raise TrainingError(f"{message}; `wedlm train --help` says where the arguments are described.")

    parser.error = refuse
    with as_training_errors():
        run, training, rest = parser.parse_args_into_dataclasses(
            words, return_remaining_strings=True, look_for_args_file=False
        )
    if rest:
        raise TrainingError(f"{rest[0]!r} belongs to no argument; write --name value, the file's name first.")
    check(run, training)
    return run, training


def read_fields(path: str) -> dict:
    if not Path(path).exists():
        raise TrainingError(f"There is no file {path}; give the YAML file of a run, as in training/configs.")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        sentence = " ".join(str(error).split())
        raise TrainingError(f"{path} cannot be read as YAML ({sentence}); correct the name or the file.") from error
    if not isinstance(content, dict):
        raise TrainingError(f"{path} holds no arguments; write a line `name: value` for each.")
    return content


def as_words(name: str, value: object) -> list[str]:
    if isinstance(value, list) and value:
        return [f"--{name}", *map(str, value)]
    if value is None or value == []:
        return []
    if value is False and name.endswith("_strategy"):
        value = "no"  # YAML reads it as False
    return [f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"]


def check_names(words: list[str], known: set[str]) -> None:
    for word in words:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and name not in known and name.removeprefix("no_") not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "docs/reference/train.md lists them all."
            raise TrainingError(f"There is no argument {name!r}; {hint}")


def check(run: RunArguments, training: "WeDLMTrainingArguments") -> None:
    if run.lora_r < 0:
        raise TrainingError(f"lora_r={run.lora_r} is not a rank; pass 1 or more, or 0 to train the whole model.")
    if run.load_in_4bit and not run.lora_r:
        raise TrainingError(
            "load_in_4bit=True needs lora_r, because 4-bit weights cannot be trained; pass lora_r=16, for example."
        )
    if training.objective == "draft" and not run.lora_r:
        raise TrainingError(
            'objective="draft" needs lora_r, because it trains an adapter and never the model; pass lora_r=32, for '
            "example."
        )
    if run.load_in_4bit and run.random_weights:
        raise TrainingError("load_in_4bit=True and random_weights=True exclude each other; leave out one of them.")
