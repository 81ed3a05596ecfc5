"""Does a real model stream, after minutes of training on a task of its own? The slice `tasks` of gpu_kit.py.

The questions are the demo's own, without the stories. SmolLM2-135M-Instruct answers held-out ones token by token and
streaming, before and after WeDLMTrainer has trained a LoRA on others with their right answers. The learning rate rises
and falls by the clock, so the training ends when its minutes do.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import DEVICE, ends_of, markdown, way_of
from datasets import Dataset, concatenate_datasets, load_from_disk
from peft import PeftModel, get_peft_model_state_dict
from real_training import training_rows
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)

from examples.demo.example import Example
from examples.demo.tasks import KINDS, MAX_NEW_TOKENS, check, held_out_examples, training_example
from wedlm.checkpoints.prompt_ids import encode
from wedlm.evaluation.decodings import BASELINE
from wedlm.generation.parameters import DEFAULTS
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.run_arguments import RunArguments
from wedlm.training.train import load_model
from wedlm.training.trainer import WeDLMTrainer

WEIGHTS = dict.fromkeys(KINDS, 1) | {"stories": 0}  # in the training
TASKS = [kind for kind, weight in WEIGHTS.items() if weight]
WARM_UP, DECAY = 0.03, 0.7  # shares of the time, of the rise and of the fall to nothing
FILE_BYTES = 15 * 2**20  # of a file of weights
BEFORE = (BASELINE, "streaming 0.4", "verified")
AFTER = (
    BASELINE,
    *(f"streaming {threshold}" for threshold in (0.05, 0.1, 0.2, 0.4, 0.8)),
    "blockwise 0.4",
    "verified",
)


# --- Data ---


def samples_of(folder: Path, model: Path, row_tokens: int, part: range) -> tuple[Path, dict[str, int]]:
    """Packs a part of the examples into rows, in a folder of their own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = [training_example(0, number, WEIGHTS) for number in part]
    before, behind = tokenizer.apply_chat_template(  # (once, because a template takes longer than a tokenizer)
        [{"role": "user", "content": "QUESTION"}], tokenize=False, add_generation_prompt=True
    ).split("QUESTION")
    prompts = tokenizer([before + example.prompt + behind for example in examples], add_special_tokens=False)
    answers = tokenizer([example.answer for example in examples], add_special_tokens=False)
    end = ends_of(GenerationConfig.from_pretrained(model))[:1]
    rows, counts = training_rows(prompts["input_ids"], [ids + end for ids in answers["input_ids"]], row_tokens)
    rows.save_to_disk(place := folder / str(part.start))
    return place, counts


def rows_of(given: argparse.Namespace, folder: Path) -> tuple[Dataset, dict[str, int]]:
    """The rows of training, made by all CPUs."""
    processes = min(os.cpu_count() or 1, 16)
    size = math.ceil(given.samples / processes)
    parts = [range(start, min(start + size, given.samples)) for start in range(0, given.samples, size)]
    make = partial(samples_of, folder, given.model, given.row_tokens)
    if processes > 1:
        context = multiprocessing.get_context("fork")  # which imports nothing again; the GPU is not in use yet
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            made = list(pool.map(make, parts))
    else:
        made = list(map(make, parts))
    places, counts = zip(*made, strict=True)
    rows = concatenate_datasets([load_from_disk(place) for place in places])
    return rows, {name: sum(each[name] for each in counts) for name in counts[0]}


# --- Answers ---


def held_out(number: int) -> list[Example]:
    return [example for kind in TASKS for example in held_out_examples(kind, math.ceil(number / len(TASKS)))]


def settings_of(way: str) -> dict[str, Any]:
    decoding, _, threshold = way.partition(" ")
    fixed = {"decoding": decoding}
    if threshold:
        fixed |= {"entropy_threshold": float(threshold), "distance_penalty": DEFAULTS["distance_penalty"]}
    return fixed if decoding == BASELINE else fixed | {"window_size": 16}


def answered(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], way: str
) -> dict[str, Any]:
    """The share of right answers, of each kind too, and the tokens per forward."""
    start = time.perf_counter()
    ids = [encode(model, tokenizer, example.prompt) for example in examples]
    written = way_of(model, **settings_of(way))(ids, MAX_NEW_TOKENS)
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in written.tokens]
    is_right = [check(example, text) for example, text in zip(examples, texts, strict=True)]
    tokens = sum(map(len, written.tokens))
    of_kinds = {
        kind: sum(right for right, example in zip(is_right, examples, strict=True) if example.kind == kind)
        for kind in TASKS
    }
    return {
        "questions": len(examples),
        "right": sum(is_right),
        "right_of_kinds": of_kinds,
        "tokens": tokens,
        "tokens_per_forward": tokens / sum(written.forwards),
        "seconds": time.perf_counter() - start,
        "answers": texts[:: max(1, len(texts) // 5)],
    }


# --- Training ---


class UntilTheEnd(TrainerCallback):
    """Stops the training at a time, and says by how much of it is over what the learning rate is."""

    def __init__(self, end: float):
        self.start, self.end = time.perf_counter(), end

    def factor(self, step: int) -> float:
        share = (time.perf_counter() - self.start) / (self.end - self.start)
        return min(share / WARM_UP, 1.0, max(0.0, (1 - share) / (1 - DECAY))) if step else 0.01

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if time.perf_counter() >= self.end:
            control.should_training_stop = True


def trained(given: argparse.Namespace, rows: Dataset, end: float) -> tuple[PeftModel, list[dict[str, Any]], float]:
    """The model with its LoRA, the log, and the seconds of the training."""
    with TemporaryDirectory() as folder:
        arguments = WeDLMTrainingArguments(
            folder,
            max_steps=given.steps,
            per_device_train_batch_size=given.rows_per_step,
            block_size=16,
            suffix_mask_probability=0.5,
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE == "cpu",
            logging_steps=max(1, min(10, given.steps // 4)),
            save_strategy="no",
            report_to="none",
            dataloader_num_workers=min(8, (os.cpu_count() or 1) // 2) if DEVICE == "cuda" else 0,
        )
        run = RunArguments(str(given.model), train_data=[], lora_r=given.rank, dtype="float32")
        model, clock = load_model(run.model, run, arguments), UntilTheEnd(end)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=given.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, clock.factor)
        trainer = WeDLMTrainer(
            model, arguments, train_dataset=rows, callbacks=[clock], optimizers=(optimizer, schedule)
        )
        start = time.perf_counter()
        trainer.train()
        return model.eval(), trainer.state.log_history, time.perf_counter() - start


def parts_of(weights: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """The weights in bfloat16, in parts of a file's size."""
    part, size = {}, 0
    for name, weight in weights.items():
        weight = weight.detach().to("cpu", torch.bfloat16).contiguous()
        if part and size + weight.nbytes > FILE_BYTES:
            yield part
            part, size = {}, 0
        part[name], size = weight, size + weight.nbytes
    yield part


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Writes adapter_config.json and the weights as adapter_model-0.safetensors, -1 and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    (config,) = model.peft_config.values()
    config.save_pretrained(folder)
    for number, part in enumerate(parts_of(get_peft_model_state_dict(model))):
        save_file(part, folder / f"adapter_model-{number}.safetensors", {"format": "pt"})


def table(results: dict[str, Any]) -> str:
    """The right answers and the tokens per forward by each way, before and after.

    Where a record has answers that were measured later, they stand in place of those after the training.
    """
    lines, after = [], "later" if "later" in results else "after"
    for way in AFTER:
        if f"{after}, {way}" in results:
            moments = results.get(f"before, {way}"), results[f"{after}, {way}"]
            pairs = [(each["right"], f"{each['tokens_per_forward']:.2f}") if each else ("", "") for each in moments]
            lines.append([way, *(cell for pair in pairs for cell in pair)])
    header = ["way", "right before", "tokens per forward", "right after", "tokens per forward"]
    return markdown(header, lines, left={"way"})


def tasks(given: argparse.Namespace, record) -> None:
    examples = held_out(given.questions)
    with TemporaryDirectory() as folder:
        rows, counts = rows_of(given, Path(folder))
        record.add("data", counts | {"seconds_left": record.seconds_left()})
        tokenizer = AutoTokenizer.from_pretrained(given.model)
        run = RunArguments(str(given.model), train_data=[], dtype="float32")
        base = load_model(run.model, run, WeDLMTrainingArguments(folder, use_cpu=DEVICE == "cpu")).to(DEVICE).eval()
        for way in BEFORE:
            record.add(f"before, {way}", answered(base, tokenizer, examples, way))
        del base
        end = time.perf_counter() + max(record.seconds_left() - given.evaluation_seconds, 1)
        model, log, seconds = trained(given, rows, end)
    names = ("step", "loss", "mlm_loss", "ar_loss", "learning_rate")
    losses = [{name: entry[name] for name in names} for entry in log if "loss" in entry]
    record.add("training", {"seconds": seconds, "steps": log[-1]["step"], "losses": losses})
    save_adapter(model, given.out / "adapter")
    merged = model.merge_and_unload()
    merged.config.mask_trained = True
    for way in AFTER:
        record.add(f"after, {way}", answered(merged, tokenizer, examples, way))
    print(json.dumps({name: result for name, result in record.results.items() if "right" in result}, indent=1))
