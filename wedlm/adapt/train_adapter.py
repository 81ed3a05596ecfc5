"""Trains the adapter on the answers, for a given time or number of steps; a stopped run goes on."""

import json
import time
from pathlib import Path

from accelerate import PartialState
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from wedlm.adapt.settings import AdaptSettings
from wedlm.adapters.draft_lora import DraftLoraConfig
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS
from wedlm.checkpoints.whole_file import write_whole
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.data import prepare_dataset
from wedlm.training.ended_processes import ended_processes
from wedlm.training.errors import as_training_errors
from wedlm.training.output_folder import full_disks
from wedlm.training.resume import last_complete_checkpoint, newest_first
from wedlm.training.trainer import WeDLMTrainer

SCALE = 64  # lora_alpha / r; drafts get better more slowly with 8 (DEVLOG)
PROBED_STEPS = 4  # the first one is slow and does not count
NUM_SAVED = 20  # checkpoints of a run; the last two stay
NUM_EVALUATIONS = 10
STEPS_FILE = "steps.json"
LOG_FILE = "log.json"


def train_adapter(settings: AdaptSettings, base: Path, tokenizer: PreTrainedTokenizerBase, work: Path) -> Path:
    """Trains the adapter and returns its folder, with the log in log.json.

    Args:
        settings (`AdaptSettings`): The settings.
        base (`Path`): The WeDLM checkpoint.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        work (`Path`): The folder with train.jsonl and held_out.jsonl, where everything is kept.
    """
    state, adapter = PartialState(), work / "adapter"
    if adapter.exists():
        return adapter
    steps = number_of_steps(settings, base, tokenizer, work)
    training = arguments(settings, work / "training", state, max_steps=steps)
    checkpoint = last_complete_checkpoint(training) if newest_first(work / "training") else None
    with as_training_errors(), full_disks(training), ended_processes(training):
        trainer = new_trainer(settings, base, tokenizer, training, work)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model(work / "training" / "last")
    if state.is_main_process:
        with complete_or_absent(adapter, overwrite=False) as new:
            for file in (work / "training" / "last").glob("adapter_*"):
                (new / file.name).write_bytes(file.read_bytes())
            (new / LOG_FILE).write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
    state.wait_for_everyone()
    return adapter


def new_trainer(
    settings: AdaptSettings,
    base: Path,
    tokenizer: PreTrainedTokenizerBase,
    training: WeDLMTrainingArguments,
    work: Path,
) -> WeDLMTrainer:
    """Loads the base, adds an adapter, and reads the answers."""
    with training.main_process_first(desc="reading the answers"):
        datasets = [prepare_dataset(work / f"{name}.jsonl", tokenizer, training.data_options()) for name in ("train", "held_out")]
    model = WeDLMForCausalLM.from_pretrained(base, dtype=settings.dtype)
    set_seed(settings.seed)
    adapted = get_peft_model(model, DraftLoraConfig(r=settings.rank, lora_alpha=SCALE * settings.rank))
    if settings.start_from is not None:
        copy_weights(settings.start_from, adapted)
    (train, _), (held_out, _) = datasets
    return WeDLMTrainer(adapted, training, train_dataset=train, eval_dataset=held_out, processing_class=tokenizer)


def arguments(settings: AdaptSettings, folder: Path, state: PartialState, **more) -> WeDLMTrainingArguments:
    on_cpu = state.device.type == "cpu"
    steps = more["max_steps"]
    defaults = {
        "objective": "draft",
        "draft_window": settings.window_size,
        "packing": True,
        "max_length": settings.max_length,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(20, steps // 10),
        "adam_beta2": 0.99,
        "bf16": settings.dtype == "bfloat16",
        # On a CPU a mask of all pairs of queries is faster, as long as rows are short.
        "attn_implementation": "sdpa" if on_cpu else "dual_stream",
        "logging_steps": max(1, steps // 100),
        "save_steps": max(1, steps // NUM_SAVED),
        "save_total_limit": 2,
        "eval_strategy": "steps",
        "eval_steps": max(1, steps // NUM_EVALUATIONS),
        "seed": settings.seed,
        "report_to": "none",
        "use_cpu": on_cpu,
    }
    return WeDLMTrainingArguments(str(folder), **defaults | more)


# --- The number of steps ---


class Clock(TrainerCallback):
    """The time at the end of each optimizer step."""

    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())


def number_of_steps(
    settings: AdaptSettings, base: Path, tokenizer: PreTrainedTokenizerBase, work: Path
) -> int:
    """The number of steps that fit into the minutes. It is found once, so that a stopped run keeps its schedule."""
    if settings.steps is not None:
        return settings.steps
    file, state = work / STEPS_FILE, PartialState()
    if not file.exists():
        never = {"save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        training = arguments(settings, work / "training", state, max_steps=PROBED_STEPS, **never)
        trainer, clock = new_trainer(settings, base, tokenizer, training, work), Clock()
        trainer.add_callback(clock)
        trainer.train()
        if state.is_main_process:
            seconds = (clock.times[-1] - clock.times[0]) / (PROBED_STEPS - 1)
            steps = max(PROBED_STEPS, round(60 * settings.minutes / seconds))
            print(f"A step takes {seconds:.1f} s, so the adapter is trained for {steps} steps.")
            write_whole(file, json.dumps({"steps": steps, "seconds_per_step": seconds}) + "\n")
        state.wait_for_everyone()
    return json.loads(file.read_text(encoding="utf-8"))["steps"]


# --- The first weights ---


def copy_weights(folder: Path, adapted: PeftModel) -> None:
    """Gives a new adapter the weights of another one of the same shape and base."""
    adapted.load_adapter(folder, adapter_name="default", is_trainable=True)
