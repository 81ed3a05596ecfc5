"""How many tokens per second does WeDLMTrainer train, and how much of the GPU's peak is that? A slice of gpu_kit.py.

A shape of random weights trains on a row of random tokens in each step, one sample of 4,096 or 16,384 tokens, a
quarter of them prompt: the whole model, or a LoRA on all its linear layers. Products are made in bfloat16, as
`wedlm train` makes them with `bf16`; weights that are trained are float32, those under a LoRA bfloat16. The ways:

- WeDLMTrainer: the two streams of the paper's objective, whose attention is FlexAttention on a GPU
- Trainer: transformers' own Trainer with its own class, on the same tokens, causally
- Trainer, flash-attn: the same with that attention, where the package is there

A step is all that the Trainer does from one to the next. The first three are left out: their shapes are compiled. The
tokens that count are those of the text. Memory is the most that torch allocates, weights and optimizer included.

The peak is that of a large product of bfloat16 in the same run. The operations are those that the objective needs: two
for each weight of a linear layer and each query that goes through it, and four for each pair of a query and a key that
it sees, in each dimension of each head. The backward makes those of layers once more for the inputs, and once more for
weights that are trained, and those of attention twice. What is computed beyond that does not count: what the backward
computes again, and PEFT's gradient of a whole head, of which a LoRA trains the row of MASK.
"""

import argparse
import importlib.util
import math
from collections.abc import Iterator
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import (
    DEVICE,
    flops_per_second,
    markdown,
    median_and_range,
    peak_bytes,
    random_model,
    stock_model,
    why_lacking,
    with_range,
)
from datasets import Dataset
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainerCallback, default_data_collator

from wedlm.evaluation.timing import now
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.run_arguments import RunArguments
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.train import with_lora
from wedlm.training.trainer import WeDLMTrainer

WARM_UP = 3  # steps
STEPS_OF_REPEAT = 3
OURS, CAUSAL, FLASH = "WeDLMTrainer", "Trainer", "Trainer, flash-attn"
WAYS = {OURS: "dual_stream", CAUSAL: "sdpa"}  # and their attn_implementation
if DEVICE == "cuda" and importlib.util.find_spec("flash_attn"):
    WAYS[FLASH] = "flash_attention_2"


class Clock(TrainerCallback):
    """The times at which the steps have ended, behind that of the start."""

    def __init__(self):
        self.times: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.times.append(now(DEVICE))

    on_step_end = on_train_begin

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self.times)]


def rows_of(vocabulary: int, length: int, number: int) -> Dataset:
    tokens = torch.randint(vocabulary - 1, (number, length), generator=torch.Generator().manual_seed(0)).tolist()
    num_prompt = length // 4
    return Dataset.from_dict(
        {
            "input_ids": tokens,
            "labels": [num_prompt * [NO_TARGET] + row[num_prompt:] for row in tokens],
            "sample_lengths": number * [[length]],
            "sample_indices": [[index] for index in range(number)],
        }
    )


def new_trainer(
    way: str, shape: str, rank: int, length: int, steps: int, folder: str
) -> tuple[Trainer, PreTrainedModel | PeftModel]:
    """The Trainer of a way and its model; a rank of 0 trains the whole model."""
    arguments = WeDLMTrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=1,
        bf16=DEVICE == "cuda",
        use_cpu=DEVICE == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = random_model(shape, torch.bfloat16 if rank and DEVICE == "cuda" else torch.float32)
    rows = rows_of(model.config.vocab_size, length, steps)
    if way != OURS:
        model = stock_model(model)
        model.set_attn_implementation(WAYS[way])
        rows = rows.select_columns(["input_ids", "labels"])
    if rank:
        model = with_lora(model, RunArguments("", train_data=[], lora_r=rank), arguments)
    if way == OURS:
        return WeDLMTrainer(model, arguments, train_dataset=rows), model
    return Trainer(model, arguments, default_data_collator, rows), model


def counts_of(trainer: Trainer) -> Iterator[tuple[int, int, int]]:
    """The queries, those with a target, and the pairs of a query and a key in each step."""
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        if "targets" not in batch:
            length = len(row["input_ids"])
            yield length, length, length * (length + 1) // 2  # transformers computes the logits of all
        else:
            keys = batch["position_ids"] + 1  # in either stream a query sees as many keys as causally
            yield keys.numel(), (batch["targets"] != NO_TARGET).sum().item(), keys.sum().item()


def flops(model: PreTrainedModel | PeftModel, is_whole: bool, queries: float, targets: float, pairs: float) -> float:
    """The operations of a step that its products need."""
    config = model.config
    products = sum(
        2 * module.weight.numel() * (2 + module.weight.requires_grad)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "lm_head" not in name
    )
    head = 2 * config.hidden_size * config.vocab_size * (2 + is_whole)
    attention = 3 * 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return queries * products + targets * head + pairs * attention


def trained(way: str, shape: str, rank: int, length: int, repeats: int, peak: float) -> dict[str, Any]:
    """The numbers of a training."""
    torch.compiler.reset()  # it compiles a function for at most 8 shapes
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    clock, steps = Clock(), WARM_UP + STEPS_OF_REPEAT * repeats
    with TemporaryDirectory() as folder:
        trainer, model = new_trainer(way, shape, rank, length, steps, folder)
        trainer.add_callback(clock)
        counts = [sum(each) / steps for each in zip(*counts_of(trainer), strict=True)]
        trainer.train()
    operations, seconds = flops(model, not rank, *counts), clock.seconds()
    measured = median_and_range(seconds[WARM_UP:])
    return {
        "tokens_per_second": median_and_range([length / each for each in seconds[WARM_UP:]]),
        "seconds_per_step": measured,
        "share_of_peak": operations / measured["median"] / peak,
        "flops_per_step": operations,
        "queries": counts[0],
        "bytes": peak_bytes(),
        "warm_up_seconds": sum(seconds[:WARM_UP]),
    }


def measure(given: argparse.Namespace, record) -> None:
    if record.lacks("flops_per_second"):
        record.add("flops_per_second", flops_per_second(DEVICE, 20))
    peak = record.results.get("flops_per_second", math.nan)
    for shape in given.shapes:
        for length in given.training_lengths:
            for rank in (given.rank, 0):
                for way in WAYS:
                    kind = f"LoRA of rank {rank}" if rank else "whole"
                    name = f"{shape}, {kind}, {length:,} tokens, {way}"
                    record.measure(name, trained, way, shape, rank, length, given.repeats, peak)


def table(results: dict[str, Any]) -> str:
    lines = []
    for name, numbers in results.items():
        if lacking := why_lacking(numbers):
            lines.append([name, lacking, "", "", ""])
        elif isinstance(numbers, dict):
            speed = with_range(numbers["tokens_per_second"], ",.0f")
            share, memory = f"{numbers['share_of_peak']:.0%}", f"{numbers['bytes'] / 1e9:.1f}"
            lines.append([name, speed, share, memory, f"{numbers['warm_up_seconds']:.0f}"])
    header = ["training", "tokens per second (min - max)", "share of the peak", "GB", "s of the first 3 steps"]
    return markdown(header, lines, left={"training"})
