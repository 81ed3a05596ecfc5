"""The work of `wedlm train`: prepares the data, loads or converts the model, trains it and saves the checkpoint."""

import json
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from matplotlib.figure import Figure
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedTokenizerBase,
    set_seed,
)

from wedlm.checkpoints.architectures import STOCK, check_architecture, read_wedlm_config
from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.checkpoints.load import read_model
from wedlm.checkpoints.resolve import (
    checkpoint_folder,
    read_config,
    read_generation_fields,
    require_own_format,
    require_tokenizer,
)
from wedlm.checkpoints.tokenizer_files import load_tokenizer
from wedlm.checkpoints.whole_file import write_whole
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.dataset import DataSummary, prepare_dataset
from wedlm.training.draft_lora import DraftLoraConfig
from wedlm.training.output_dir import REPORT_FILE, begin_run, check_output_dir, first_checkpoint, is_first_process
from wedlm.training.preview import preview
from wedlm.training.resume import newest_complete
from wedlm.training.run_arguments import RunArguments, parse
from wedlm.training.run_errors import TrainingError, as_training_errors, ended_process_errors, full_disk_errors
from wedlm.training.trainer import WeDLMTrainer


def train(arguments: list[str]) -> None:
    """Runs `wedlm train CONFIG.yaml [--argument value ...]`."""
    run, training = parse(arguments)
    config, tokenizer = read_config_and_tokenizer(run)
    if run.preview:
        return print_preview(run, training, tokenizer)
    checkpoint = first_checkpoint(run, training)
    check_output_dir(run, training, config)
    # The data comes before the model, so that its errors are raised before anything is written.
    datasets, summaries = prepare_datasets(run, training, tokenizer)
    print_summaries(summaries, training)
    source = run.model
    if config["model_type"] != MODEL_TYPE:
        source = convert_model(run, training, is_resumed=checkpoint is not None)
    with as_training_errors():
        trainer = WeDLMTrainer(
            load_model(source, run, training),
            training,
            train_dataset=datasets["train"],
            eval_dataset=datasets.get("eval"),
            processing_class=load_tokenizer(checkpoint_folder(source, with_weights=False), source),
        )
    with full_disk_errors(training), ended_process_errors(training):
        begin_run(run, training, checkpoint)
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except KeyboardInterrupt:
            if trainer.is_world_process_zero():
                start = newest_complete(training) or "the first step, because no checkpoint was saved (save_steps)"
                print(f"\nStopped; the same command goes on from {start}.", file=sys.stderr)
            raise
        if training.streaming:
            print_summaries(summaries, training)
        if "eval" in datasets:
            trainer.evaluate()
        trainer.save_model()
        trainer.save_state()
        if trainer.is_world_process_zero():
            write_report(Path(training.output_dir), arguments, trainer.state.log_history, summaries)
            print(f"Written to {training.output_dir}.\nNext: {next_command(run, training)}")


def next_command(run: RunArguments, training: WeDLMTrainingArguments) -> str:
    """The command that a user needs next, for what the run has written."""
    out = quote(training.output_dir)
    if run.lora_r and training.objective != "draft":
        return f"wedlm merge {out} {quote(training.output_dir.rstrip('/') + '-merged')}"
    return f'wedlm generate {out} "Why is the sky blue?"'


# --- Data ---


def read_config_and_tokenizer(run: RunArguments) -> tuple[dict, PreTrainedTokenizerBase]:
    """Returns the content of config.json, and the tokenizer, which gets a mask token as conversion gives it one."""
    folder = checkpoint_folder(run.model, with_weights=False)
    fields = read_config(run.model, folder)
    check_architecture(fields, run.model, wanted=(*STOCK, MODEL_TYPE))
    require_own_format(run.model, folder)
    read_wedlm_config(fields, run.model)
    read_generation_fields(folder)  # which refuses wrong ones
    require_tokenizer(run.model, folder)
    tokenizer = load_tokenizer(folder, run.model)
    if tokenizer.mask_token is None and fields["model_type"] != MODEL_TYPE:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    return fields, tokenizer


def prepare_datasets(
    run: RunArguments, training: WeDLMTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Dataset | IterableDataset], dict[str, DataSummary]]:
    """Returns the datasets and their summaries, both by "train" and, if there is eval_data, "eval"."""
    options = training.data_options()
    datasets, summaries = {}, {}
    with training.main_process_first(desc="reading the data"):
        datasets["train"], summaries["train"] = prepare_dataset(run.train_data, tokenizer, options)
        if run.eval_data:
            options = replace(options, streaming=False)
            datasets["eval"], summaries["eval"] = prepare_dataset(run.eval_data, tokenizer, options)
    return datasets, summaries


def print_summaries(summaries: dict[str, DataSummary], training: WeDLMTrainingArguments) -> None:
    for name, summary in summaries.items():
        # Nothing of a streamed dataset is read before training, and with workers nothing by this process.
        if training.process_index == 0 and summary.num_read:
            print(f"{name}: {summary}")


def print_preview(run: RunArguments, training: WeDLMTrainingArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    dataset, summary = prepare_dataset(run.train_data, tokenizer, training.data_options())
    batch = training.collator(tokenizer.mask_token_id)([next(iter(dataset))])
    print(preview(dataset, tokenizer, batch))
    print(summary)


# --- The model ---


def convert_model(run: RunArguments, training: WeDLMTrainingArguments, is_resumed: bool) -> str:
    """Converts a stock checkpoint, in one process, and returns the folder of the result."""
    out = Path(training.output_dir) / "converted"
    with training.main_process_first(local=training.save_on_each_node, desc="converting the model"):
        if is_first_process(training) and not (is_resumed and out.exists()):
            for note in convert_to_wedlm(run.model, out, overwrite=True).notes:
                print(f"Note: {note}")
            config = WeDLMConfig.from_pretrained(out)
            if training.objective != "draft" and config.mask_shift != (training.objective == "i-dlm"):
                config.mask_shift = not config.mask_shift
                config.save_pretrained(out)
    return str(out)


def load_model(source: str, run: RunArguments, training: WeDLMTrainingArguments) -> WeDLMForCausalLM | PeftModel:
    """Loads the model of a WeDLM checkpoint, or its shape with random weights, and adds LoRA."""
    set_seed(training.seed)  # for random weights, and for those of LoRA
    is_lora = run.lora_r > 0
    dtype = run.dtype if run.dtype != "auto" or is_lora else "float32"
    if run.random_weights:
        config = AutoConfig.from_pretrained(source)
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
        if (Path(source) / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(source)
    else:
        quantization = None
        if run.load_in_4bit:
            compute_dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
            quantization = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute_dtype
            )
        folder = checkpoint_folder(source, with_weights=True)
        model = read_model(WeDLMForCausalLM, source, folder, dtype=dtype, quantization_config=quantization)
    if model.config.mask_token_id is None:
        raise TrainingError(f"model={run.model} has no mask_token_id in its config; set it there.")
    return with_lora(model, run, training) if is_lora else model


def with_lora(model: WeDLMForCausalLM, run: RunArguments, training: WeDLMTrainingArguments) -> PeftModel:
    if run.load_in_4bit:
        model = prepare_model_for_kbit_training(model, training.gradient_checkpointing)
    fields: dict[str, Any] = {
        "task_type": "CAUSAL_LM",
        "r": run.lora_r,
        "lora_alpha": 2 * run.lora_r if run.lora_alpha is None else run.lora_alpha,
        "lora_dropout": run.lora_dropout,
        "target_modules": "all-linear" if run.lora_target_modules == ["all-linear"] else run.lora_target_modules,
    }
    if training.objective == "draft":
        return get_peft_model(model, DraftLoraConfig(**fields))
    # The embedding of MASK in a converted checkpoint has never been trained.
    fields["trainable_token_indices"] = {"embed_tokens": [model.config.mask_token_id]}
    return get_peft_model(model, LoraConfig(**fields))


# --- The report ---


def write_report(
    folder: Path, arguments: list[str], log_history: list[dict], summaries: dict[str, DataSummary]
) -> None:
    """Writes training_report.json and loss.png; tokens of the Hub among the arguments are left out."""
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
    plot_losses(steps, evaluations, folder / "loss.png")
    write_whole(folder / REPORT_FILE, json.dumps(report, indent=2) + "\n")


def without_secrets(arguments: list[str]) -> list[str]:
    """Replaces the values of arguments such as --hub_token by dots."""
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
