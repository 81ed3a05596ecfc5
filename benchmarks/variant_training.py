"""Trains the base and the variants of the ablations of training; a training that was stopped goes on."""

import argparse
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bidirectional import bidirectional_blocks
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from variant_decoding import Inside

from examples.demo.model import SEED, MuonAndAdamW
from examples.demo.tasks import example
from wedlm import DualStreamCollator, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.training.dual_stream import MEMORY
from wedlm.training.packing import pack_batch
from wedlm.training.resume import newest_complete
from wedlm.training.target_loss import NO_TARGET

KINDS = ("functions", "equations")
LARGEST_BLOCK = 32
ROW_TOKENS = 192
SAMPLES_PER_ROW = 2.4  # an upper bound of the mean, so that no row is needed twice


class Variant(NamedTuple):
    block_size: int
    inside: Inside

    @property
    def name(self) -> str:
        return f"{self.inside} blocks of {self.block_size}"


# --- Data ---


def sample(tokenizer: PreTrainedTokenizerBase, index: int) -> dict[str, list[int]]:
    """A training question, of the two kinds in turns, and its answer; end tokens fill its last block."""
    question = example(KINDS[index % 2], "train", index)
    prompt = tokenizer.apply_chat_template(question.messages[:1], add_generation_prompt=True)["input_ids"]
    answer = tokenizer(question.answer)["input_ids"]
    num_ends = LARGEST_BLOCK - (len(prompt) + len(answer)) % LARGEST_BLOCK
    answer += num_ends * [tokenizer.eos_token_id]
    return {
        "input_ids": prompt + answer,
        "labels": [NO_TARGET] * len(prompt) + answer,
        "sample_lengths": [len(prompt) + len(answer)],
        "sample_indices": [index],
    }


def training_rows(tokenizer: PreTrainedTokenizerBase, first_row: int, num_rows: int) -> Dataset:
    """Samples packed into rows of a batch; other rows have other samples."""
    indices = range(int(first_row * SAMPLES_PER_ROW), int((first_row + num_rows) * SAMPLES_PER_ROW))
    samples = [sample(tokenizer, index) for index in indices]
    columns = {name: [one[name] for one in samples] for name in samples[0]}
    return Dataset.from_dict(pack_batch(columns, ROW_TOKENS))


class MemoryCollator(DualStreamCollator):
    """Leaves the clean tokens alone in a batch, so that the autoregressive loss is the only one."""

    def row(self, sequence) -> dict[str, np.ndarray]:
        columns = super().row(sequence)
        return {name: column[columns["stream_ids"] == MEMORY] for name, column in columns.items()}


# --- Training ---


def train(
    model: PreTrainedModel,
    rows: Dataset,
    folder: Path,
    num_steps: int,
    given: argparse.Namespace,
    variant: Variant | None = None,
) -> dict:
    """Trains the model, token by token if there is no variant, from the last checkpoint in `folder`.

    Returns the losses, the first step of this run and its seconds.
    """
    arguments = WeDLMTrainingArguments(
        str(folder),
        seed=SEED,
        max_steps=num_steps,
        per_device_train_batch_size=given.rows_per_step,
        learning_rate=given.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=num_steps // 20,
        block_size=LARGEST_BLOCK if variant is None else variant.block_size,
        attn_implementation="sdpa",  # bidirectional_blocks() changes this one
        use_cpu=True,
        logging_steps=max(num_steps // 20, 1),
        save_steps=given.save_steps,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = WeDLMTrainer(
        model,
        arguments,
        data_collator=MemoryCollator(model.config.mask_token_id) if variant is None else None,
        train_dataset=rows,
        optimizers=(MuonAndAdamW(model, given.learning_rate), None),
    )
    last = newest_complete(arguments)
    is_bidirectional = variant is not None and variant.inside == "bidirectional"
    with bidirectional_blocks() if is_bidirectional else nullcontext():
        outcome = trainer.train(resume_from_checkpoint=last)
    names = ("step", "ar_loss") if variant is None else ("step", "ar_loss", "mlm_loss")
    losses = [{name: entry[name] for name in names} for entry in trainer.state.log_history if "ar_loss" in entry]
    first_step = int(last.rpartition("-")[2]) if last else 0
    return {"first_step": first_step, "seconds": outcome.metrics["train_runtime"], "losses": losses}


def kept(path: Path, make: Callable[[], list | dict]) -> list | dict:
    """The JSON in `path`. If there is no such file, calls `make` and writes its result there at once."""
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(made) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    return json.loads(path.read_text(encoding="utf-8"))


def trained(
    folder: Path,
    new_model: Callable[[], PreTrainedModel],
    new_rows: Callable[[], Dataset],
    num_steps: int,
    given: argparse.Namespace,
    variant: Variant | None = None,
) -> tuple[PreTrainedModel, dict]:
    """The model and the log of its training, which takes place now unless `folder` has it finished."""

    def finish() -> dict:
        print(f"{folder.name}: {num_steps} steps", flush=True)
        model = new_model()
        log = train(model, new_rows(), folder / "run", num_steps, given, variant)
        model.config.use_cache = True  # Trainer switched it off
        model.save_pretrained(folder / "checkpoint")
        return log

    log = kept(folder / "training.json", finish)
    return WeDLMForCausalLM.from_pretrained(folder / "checkpoint").eval(), log
