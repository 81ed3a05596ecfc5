"""What `wedlm train` does: read the arguments, load or convert the model, train, and leave a complete checkpoint."""

import difflib
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from matplotlib.figure import Figure
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    HfArgumentParser,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.modeling_wedlm.configuration_wedlm import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.data import prepare_dataset
from wedlm.training.errors import TrainingError
from wedlm.training.preview import preview
from wedlm.training.trainer import WeDLMTrainer


@dataclass
class RunArguments:
    """What is trained on what."""

    model: str = field(metadata={"help": "A WeDLM checkpoint, or one of Qwen2, Qwen2.5 or Qwen3, which is converted."})
    train_data: list[str] = field(metadata={"help": "Files of JSON Lines or Parquet, folders or patterns."})
    eval_data: list[str] = field(default_factory=list, metadata={"help": "Files to evaluate on."})
    random_weights: bool = field(default=False, metadata={"help": "Start from scratch: only the config is read."})
    dtype: str = field(
        default="auto",
        metadata={"help": "Of the weights. 'auto' is float32, or with LoRA what the checkpoint has."},
    )
    lora_r: int = field(default=0, metadata={"help": "The rank of LoRA's matrices; 0 trains the whole model."})
    lora_alpha: int | None = field(default=None, metadata={"help": "LoRA's scale; by default twice lora_r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout before LoRA's matrices."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"], metadata={"help": "Which layers get LoRA: their names, or all-linear."}
    )
    load_in_4bit: bool = field(default=False, metadata={"help": "QLoRA: the frozen weights in nf4 (bitsandbytes)."})
    preview: bool = field(default=False, metadata={"help": "Print samples, what is learnt of them, and one block."})


def as_words(name: str, value: object) -> list[str]:
    """A field of a YAML file as it would be written on the command line."""
    if isinstance(value, list) and value:
        return [f"--{name}", *map(str, value)]
    if value is None or value == []:
        return []
    if value is False and name.endswith("_strategy"):
        value = "no"  # which YAML takes for False
    return [f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"]


def parse(arguments: list[str]) -> tuple[RunArguments, WeDLMTrainingArguments]:
    """`CONFIG.yaml [--argument value ...]`; the command line overrides the file."""
    kinds = (RunArguments, WeDLMTrainingArguments)
    known = {item.name for kind in kinds for item in fields(kind) if item.init}
    words, place = [], "on the command line"
    if arguments and not arguments[0].startswith("--"):
        path, *arguments = arguments
        words += [word for name, value in read_yaml(path, known).items() for word in as_words(name, value)]
    for word in arguments:
        if word.startswith("--"):
            check_name(word[2:].partition("=")[0], known, place)
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


def check(run: RunArguments, training: WeDLMTrainingArguments) -> None:
    if run.lora_r < 0:
        raise TrainingError(f"lora_r={run.lora_r} is no rank; pass 1 or more, or 0 to train the whole model.")
    if run.load_in_4bit and not run.lora_r:
        raise TrainingError("load_in_4bit=True needs lora_r, as 4 bits cannot be trained; pass lora_r=16, say.")
    if run.load_in_4bit and run.random_weights:
        raise TrainingError("load_in_4bit=True and random_weights=True exclude each other; leave out one of them.")
    if training.streaming and training.max_steps <= 0:
        raise TrainingError("streaming=True needs max_steps, since a stream's length is not known; pass it.")
    if training.eval_strategy != "no" and not run.eval_data:
        raise TrainingError(
            f"eval_strategy={training.eval_strategy.value} needs eval_data; pass files, or leave it out."
        )
    if run.dtype != "auto" and not isinstance(getattr(torch, run.dtype, None), torch.dtype):
        raise TrainingError(f"dtype={run.dtype!r} is none of torch's; pass float32, bfloat16 or auto.")
    if Path(training.output_dir).is_file():
        raise TrainingError(f"output_dir={training.output_dir} is a file; choose a folder.")


@contextmanager
def as_training_errors():
    """What transformers and PEFT refuse before anything is trained, and the collator, as they say it."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise TrainingError(" ".join(str(error).split())) from error


def check_name(name: str, known: set[str], place: str) -> None:
    if name.replace("-", "_") not in known and name.removeprefix("no_") not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "TrainingArguments and docs/train.md list them all."
        raise TrainingError(f"There is no argument {name!r} ({place}); {hint}")


def read_yaml(path: str, known: set[str]) -> dict:
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


def train(arguments: list[str]) -> None:
    run, training = parse(arguments)
    checkpoint = last_checkpoint(training)
    config, tokenizer = read_source(run)
    if run.preview:
        return print_preview(run, training, tokenizer)
    # The data comes before the model: what is wrong with it is said before anything is written.
    datasets, summaries = {}, {}
    options = training.data_options()
    for name, paths, is_stream in (("train", run.train_data, options.streaming), ("eval", run.eval_data, False)):
        if paths:
            with training.main_process_first(desc="reading the data"):
                datasets[name], summaries[name] = prepare_dataset(
                    paths, tokenizer, replace(options, streaming=is_stream)
                )
    print_summaries(summaries, training)
    source = run.model
    if config.model_type != MODEL_TYPE:
        source = converted(run, training, is_resumed=checkpoint is not None)
    with as_training_errors():
        trainer = WeDLMTrainer(
            load_model(source, run, training),
            training,
            train_dataset=datasets["train"],
            eval_dataset=datasets.get("eval"),
            processing_class=AutoTokenizer.from_pretrained(source, trust_remote_code=False),
        )
    trainer.train(resume_from_checkpoint=checkpoint)
    if options.streaming:
        print_summaries(summaries, training)
    if "eval" in datasets:
        trainer.evaluate()
    trainer.save_model()
    trainer.save_state()
    if trainer.is_world_process_zero():
        write_report(Path(training.output_dir), arguments, trainer.state.log_history, summaries)


def last_checkpoint(training: WeDLMTrainingArguments) -> str | None:
    """The checkpoint to resume from; `resume_from_checkpoint: true` is the last one in output_dir."""
    asked = training.resume_from_checkpoint
    if asked is None or asked.lower() == "false":
        return None
    found = asked
    if asked.lower() == "true":
        found = get_last_checkpoint(training.output_dir) if Path(training.output_dir).is_dir() else None
    if found is None or not (Path(found) / "trainer_state.json").exists():
        raise TrainingError(
            f"resume_from_checkpoint={asked}: there is no checkpoint in {found or training.output_dir}; name a "
            "checkpoint-... folder, or leave the argument out to start anew."
        )
    return found


def print_summaries(summaries: dict, training: WeDLMTrainingArguments) -> None:
    for name, summary in summaries.items():
        if training.process_index == 0 and summary.num_read:  # of a stream nothing is read yet, or by its workers
            print(f"{name}: {summary}")


def read_source(run: RunArguments):
    """Config and tokenizer of `model`; that of Qwen with a mask token, as conversion will give it one."""
    try:
        config = AutoConfig.from_pretrained(run.model, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(run.model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        sentence = " ".join(str(error).split())
        raise TrainingError(
            f"model={run.model} is no checkpoint with a tokenizer ({sentence}); give a folder or a name on the Hub."
        ) from error
    if tokenizer.mask_token is None and config.model_type != MODEL_TYPE:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    return config, tokenizer


def converted(run: RunArguments, training: WeDLMTrainingArguments, is_resumed: bool) -> str:
    """The folder of what conversion makes of `model`."""
    out = Path(training.output_dir) / "converted"
    with training.main_process_first(local=training.save_on_each_node, desc="converting the model"):
        is_first = training.local_process_index == 0 if training.save_on_each_node else training.process_index == 0
        if is_first and not (is_resumed and out.exists()):
            for note in convert_to_wedlm(run.model, out, overwrite=True).notes:
                print(f"Note: {note}")
    return str(out)


def load_model(source: str, run: RunArguments, training: WeDLMTrainingArguments):
    set_seed(training.seed)  # of random weights, LoRA's too
    is_lora = run.lora_r > 0
    dtype = run.dtype if run.dtype != "auto" or is_lora else "float32"
    if run.random_weights:
        dtype = None if dtype == "auto" else dtype
        model = WeDLMForCausalLM(AutoConfig.from_pretrained(source, dtype=dtype, trust_remote_code=False))
        if (Path(source) / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(source)
    else:
        quantization = None
        if run.load_in_4bit:
            compute_dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
            quantization = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute_dtype
            )
        model = WeDLMForCausalLM.from_pretrained(source, dtype=dtype, quantization_config=quantization)
    if model.config.mask_token_id is None:
        raise TrainingError(f"model={run.model} has no mask_token_id in its config; set it there.")
    if not is_lora:
        return model
    if run.load_in_4bit:
        model = prepare_model_for_kbit_training(model, training.gradient_checkpointing)
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=run.lora_r,
            lora_alpha=2 * run.lora_r if run.lora_alpha is None else run.lora_alpha,
            lora_dropout=run.lora_dropout,
            target_modules="all-linear" if run.lora_target_modules == ["all-linear"] else run.lora_target_modules,
            # The MASK row of a converted checkpoint has never been trained.
            trainable_token_indices={"embed_tokens": [model.config.mask_token_id]},
        ),
    )


def print_preview(run: RunArguments, training: WeDLMTrainingArguments, tokenizer) -> None:
    dataset, summary = prepare_dataset(run.train_data, tokenizer, training.data_options())
    batch = training.collator(tokenizer.mask_token_id)([next(iter(dataset))])
    print(preview(dataset, tokenizer, batch, color=sys.stdout.isatty()))
    print(summary)


# --- What is left beside the checkpoint ---


def write_report(folder: Path, arguments: list[str], log_history: list[dict], summaries: dict) -> None:
    steps = [entry for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    report = {
        "command": " ".join(["wedlm", "train", *without_secrets(arguments)]),
        "versions": {name: version(name) for name in ("wedlm", "torch", "transformers", "accelerate", "datasets")},
        "data": {name: asdict(summary) for name, summary in summaries.items() if summary.num_read},
        "train": steps[-1] if steps else None,
        "eval": evaluations[-1] if evaluations else None,
        "log": log_history,
    }
    (folder / "training_report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    plot_losses(steps, evaluations, folder / "loss.png")


def without_secrets(arguments: list[str]) -> list[str]:
    words = list(arguments)
    for i, word in enumerate(arguments):
        name, is_given, _ = word.partition("=")
        if name.replace("-", "_").endswith("_token"):
            words[i : i + 2 - len(is_given)] = [f"{name}=..."] + ["..."] * (1 - len(is_given))
    return words


def plot_losses(steps: list[dict], evaluations: list[dict], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for entries, names, style in ((steps, ("loss", "mlm_loss", "ar_loss"), "-"), (evaluations, ("eval_loss",), "o-")):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in entries if name in entry]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=name, linewidth=1)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss per token (nats)")
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=150)
