"""Trains the adapter on the answers, for a given time or number of steps; a stopped run goes on."""

import json
import shutil
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import ClassVar

import torch
from accelerate import PartialState
from accelerate.utils import release_memory
from datasets import Dataset
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    set_seed,
)

from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    GENERATION_FILE,
    checkpoint_folder,
    read_generation_fields,
    with_verified_decoding,
)
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.settings import FILES, AdaptSettings
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.draft_lora import DraftLoraConfig
from wedlm.training.resume import newest_complete
from wedlm.training.trainer import WeDLMTrainer

SCALE = 64  # lora_alpha / r; drafts get better more slowly with 8 (docs/decisions.md)
PROBED_STEPS = 6  # the first ones are slow, where they compile; the median counts
NUM_SAVED = 20  # checkpoints of a run; the last two stay
NUM_EVALUATIONS = 10
STEPS_FILE = "steps.json"
LOG_FILE = "log.json"


def train_adapter(settings: AdaptSettings, tokenizer: PreTrainedTokenizerBase, work: Path) -> Path:
    """Trains the adapter and returns its folder, with the weights in bfloat16 and the log in log.json."""
    state, adapter = PartialState(), work / "adapter"
    if adapter.exists():
        return adapter
    last = work / "training" / "last"
    try:
        datasets = read_answers(settings, tokenizer, work)
        steps = number_of_steps(settings, tokenizer, datasets, work)
        release_memory()  # of the model whose steps were timed
        training = arguments(settings, work, steps)
        trainer = new_trainer(settings, tokenizer, datasets, training)
        trainer.add_callback(Bar())
        trainer.train(resume_from_checkpoint=newest_complete(training))
        trainer.evaluate()
        trainer.save_model(last)
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"The training stopped ({one_line(error)}); when that is mended, the same command goes on from {work}."
        ) from error
    if state.is_main_process:
        weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(last / ADAPTER_WEIGHTS).items()}
        with complete_or_absent(adapter, overwrite=False) as new:
            shutil.copyfile(last / ADAPTER_FILE, new / ADAPTER_FILE)
            save_file(weights, new / ADAPTER_WEIGHTS, {"format": "pt"})
            (new / LOG_FILE).write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
            own = read_generation_fields(checkpoint_folder(settings.model, with_weights=False))
            fields = json.dumps(with_verified_decoding(own), indent=2)
            (new / GENERATION_FILE).write_text(fields + "\n", encoding="utf-8")
    state.wait_for_everyone()
    del trainer  # it and its model refer to each other, so only the garbage collector frees them
    release_memory()
    return adapter


def read_answers(settings: AdaptSettings, tokenizer: PreTrainedTokenizerBase, work: Path) -> list[Dataset]:
    """Returns the answers to train on and those that were held out, as sequences of tokens."""
    options, state = DataOptions(max_length=settings.max_length, packing=True), PartialState()
    with state.main_process_first():
        (train, summary), (held_out, _) = (
            prepare_dataset(work / f"{name}.jsonl", tokenizer, options) for name in FILES
        )
    state.print(summary)
    return [train, held_out]


def new_trainer(
    settings: AdaptSettings,
    tokenizer: PreTrainedTokenizerBase,
    datasets: list[Dataset],
    training: WeDLMTrainingArguments,
) -> WeDLMTrainer:
    """Loads the base, and adds an adapter."""
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=settings.dtype, use_safetensors=True)
    set_seed(settings.seed)
    if settings.start_from is None:
        model = get_peft_model(
            model, DraftLoraConfig(r=settings.rank, lora_alpha=SCALE * settings.rank, mask_shift=settings.mask_shift)
        )
    else:
        model = PeftModel.from_pretrained(model, settings.start_from, is_trainable=True)
    train, held_out = datasets
    trainer = WeDLMTrainer(model, training, train_dataset=train, eval_dataset=held_out, processing_class=tokenizer)
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    return trainer


class Bar(ProgressCallback):
    """The progress bar of transformers, with the tokens per forward behind it in place of lines of numbers."""

    TITLES: ClassVar = {"tokens_per_forward": "tokens/forward", "eval_tokens_per_forward": "held out"}

    def __init__(self):
        super().__init__()
        self.shown = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.shown |= {title: f"{logs[name]:.2f}" for name, title in self.TITLES.items() if name in logs}
        if self.training_bar is not None:
            self.training_bar.set_postfix(self.shown, refresh=False)


def arguments(settings: AdaptSettings, work: Path, steps: int, **more) -> WeDLMTrainingArguments:
    dtype = settings.dtype if settings.dtype != "auto" else str(AutoConfig.from_pretrained(settings.model).dtype)
    defaults = {
        "max_steps": steps,
        "objective": "draft",
        "draft_window": settings.window_size,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(20, steps // 10),
        "adam_beta2": 0.99,
        "bf16": dtype.endswith("bfloat16"),  # the adapter's own weights are in float32
        "logging_steps": max(1, steps // 100),
        "save_steps": max(1, steps // NUM_SAVED),
        "save_total_limit": 2,
        "eval_strategy": "steps",
        "eval_steps": max(1, steps // NUM_EVALUATIONS),
        "seed": settings.seed,
        "report_to": "none",
        "disable_tqdm": False,
        "use_cpu": PartialState().device.type == "cpu",
    }
    return WeDLMTrainingArguments(str(work / "training"), **defaults | more)


# --- The number of steps ---


class Clock(TrainerCallback):
    """The time at the end of each optimizer step."""

    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())


def number_of_steps(
    settings: AdaptSettings, tokenizer: PreTrainedTokenizerBase, datasets: list[Dataset], work: Path
) -> int:
    """The number of steps that fit into the minutes. It is found once, so that a stopped run keeps its schedule."""
    if settings.steps is not None:
        return settings.steps
    file, state = work / STEPS_FILE, PartialState()
    if not file.exists():
        state.print(f"{PROBED_STEPS} steps of the training are timed.", flush=True)
        never = {"save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no"}
        training = arguments(settings, work, PROBED_STEPS, **never)
        trainer, clock = new_trainer(settings, tokenizer, datasets, training), Clock()
        trainer.add_callback(clock)
        trainer.train()
        if state.is_main_process:
            seconds = median(end - start for start, end in pairwise(clock.times))
            steps = max(PROBED_STEPS, round(60 * settings.minutes / seconds))
            print(f"A step takes {seconds:.1f} s, so the adapter is trained for {steps} steps.", flush=True)
            write_whole(file, json.dumps({"steps": steps, "seconds_per_step": seconds}) + "\n")
        state.wait_for_everyone()
    return json.loads(file.read_text(encoding="utf-8"))["steps"]
