"""The arguments of `wedlm train`, read from a YAML file and the command line."""

import difflib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
import yaml
from transformers import HfArgumentParser

from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.errors import TrainingError, as_training_errors


@dataclass
class RunArguments:
    """The arguments of `wedlm train` that WeDLMTrainer does not have: the model, the data and LoRA.

    Args:
        model (`str`): A WeDLM checkpoint, or one of Qwen2, Qwen3, Llama or Mistral, which is converted.
        train_data (`list[str]`): Files, folders or patterns.
        eval_data (`list[str]`, *optional*): The same, to evaluate on.
        random_weights (`bool`, *optional*, defaults to `False`): Whether to train from scratch.
        dtype (`str`, *optional*, defaults to `"auto"`):
            The type of the weights. `"auto"` is float32, or with LoRA the type in the checkpoint.
        lora_r (`int`, *optional*, defaults to 0): The rank of LoRA's matrices; 0 trains the whole model.
        lora_alpha (`int`, *optional*): The scale of LoRA; by default twice `lora_r`.
        lora_dropout (`float`, *optional*, defaults to 0.0): The dropout before LoRA's matrices.
        lora_target_modules (`list[str]`, *optional*):
            The names of the layers that get LoRA; by default `["all-linear"]`, all linear layers but the head.
        load_in_4bit (`bool`, *optional*, defaults to `False`): Whether the frozen weights are in nf4, as in QLoRA.
        preview (`bool`, *optional*, defaults to `False`): Whether to print samples and train nothing.
    """

    model: str = field(metadata={"help": "A WeDLM checkpoint, or one of Qwen2, Qwen3, Llama or Mistral to convert."})
    train_data: list[str] = field(metadata={"help": "Files of JSON Lines or Parquet, folders or patterns."})
    eval_data: list[str] = field(default_factory=list, metadata={"help": "Files to evaluate on."})
    random_weights: bool = field(default=False, metadata={"help": "Start from scratch: only the config is read."})
    dtype: str = field(
        default="auto",
        metadata={"help": "The type of the weights. 'auto' is float32, or with LoRA the type in the checkpoint."},
    )
    lora_r: int = field(default=0, metadata={"help": "The rank of LoRA's matrices; 0 trains the whole model."})
    lora_alpha: int | None = field(default=None, metadata={"help": "The scale of LoRA; by default twice lora_r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "The dropout before LoRA's matrices."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"], metadata={"help": "The names of the layers that get LoRA."}
    )
    load_in_4bit: bool = field(default=False, metadata={"help": "QLoRA: the frozen weights in nf4 (bitsandbytes)."})
    preview: bool = field(
        default=False, metadata={"help": "Print samples with their loss and one masked block, and train nothing."}
    )


def parse(arguments: list[str]) -> tuple[RunArguments, WeDLMTrainingArguments]:
    """Reads and checks the arguments of a run.

    Args:
        arguments (`list[str]`): `CONFIG.yaml [--argument value ...]`. The command line overrides the file.

    Returns:
        `tuple[RunArguments, WeDLMTrainingArguments]`: The arguments.
    """
    kinds = (RunArguments, WeDLMTrainingArguments)
    known = {item.name for kind in kinds for item in fields(kind) if item.init}
    words = []
    if arguments and not arguments[0].startswith("--"):
        path, *arguments = arguments
        words += [word for name, value in read_yaml(path, known).items() for word in as_words(name, value)]
    for word in arguments:
        if word.startswith("--"):
            check_name(word[2:].partition("=")[0], known, "on the command line")
    parser = HfArgumentParser(kinds, allow_abbrev=False, add_help=False)

    def refuse(message: str):
        raise TrainingError(f"{message}; `wedlm train --help` says where the arguments are described.")

    parser.error = refuse
    with as_training_errors():
        run, training, rest = parser.parse_args_into_dataclasses(
            [*words, *arguments], return_remaining_strings=True, look_for_args_file=False
        )
    if rest:
        raise TrainingError(f"{rest[0]!r} belongs to no argument; write --name value, the file's name first.")
    check(run, training)
    return run, training


def read_yaml(path: str, known: set[str]) -> dict:
    if not Path(path).exists():
        raise TrainingError(f"There is no file {path}; give the YAML file of a run, as in training/configs.")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        sentence = " ".join(str(error).split())
        raise TrainingError(f"{path} cannot be read as YAML ({sentence}); correct the name or the file.") from error
    if not isinstance(content, dict):
        raise TrainingError(f"{path} holds no arguments; write a line `name: value` for each.")
    for name in content:
        check_name(str(name), known, f"in {path}")
    return content


def as_words(name: str, value: object) -> list[str]:
    """Writes a field of a YAML file as words of a command line."""
    if isinstance(value, list) and value:
        return [f"--{name}", *map(str, value)]
    if value is None or value == []:
        return []
    if value is False and name.endswith("_strategy"):
        value = "no"  # YAML reads it as False
    return [f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"]


def check_name(name: str, known: set[str], place: str) -> None:
    if name.replace("-", "_") not in known and name.removeprefix("no_") not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "TrainingArguments and docs/train.md list them all."
        raise TrainingError(f"There is no argument {name!r} ({place}); {hint}")


def check(run: RunArguments, training: WeDLMTrainingArguments) -> None:
    if run.lora_r < 0:
        raise TrainingError(f"lora_r={run.lora_r} is no rank; pass 1 or more, or 0 to train the whole model.")
    if run.load_in_4bit and not run.lora_r:
        raise TrainingError(
            "load_in_4bit=True needs lora_r, because 4-bit weights cannot be trained; pass lora_r=16, for example."
        )
    if run.load_in_4bit and run.random_weights:
        raise TrainingError("load_in_4bit=True and random_weights=True exclude each other; leave out one of them.")
    if training.streaming and training.max_steps <= 0:
        raise TrainingError(
            "streaming=True needs max_steps, because the length of a streamed dataset is not known; pass it."
        )
    if training.eval_strategy != "no" and not run.eval_data:
        raise TrainingError(
            f"eval_strategy={training.eval_strategy.value} needs eval_data; pass files, or leave it out."
        )
    if run.dtype != "auto" and not isinstance(getattr(torch, run.dtype, None), torch.dtype):
        raise TrainingError(f"dtype={run.dtype!r} is no type of torch; pass float32, bfloat16 or auto.")
    if Path(training.output_dir).is_file():
        raise TrainingError(f"output_dir={training.output_dir} is a file; choose a folder.")
