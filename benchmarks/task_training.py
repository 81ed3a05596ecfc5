"""Does a real model stream, after minutes of training on a task of its own? The slice `tasks` of gpu_kit.py.

The questions are the demo's own, without the stories. SmolLM2-135M-Instruct answers held-out ones token by token and
streaming, before and after WeDLMTrainer has trained a LoRA on others with their right answers. The learning rate rises
and falls by the clock, so the training ends when its minutes do.

These may be several calls, also on several machines. Once a minute, and at the end of a call, the LoRA is written into
FOLDER/adapter in bfloat16, in files of at most 15.7 MB that together have 39 MB at rank 64, and the record says how
long it was trained. The next call goes on from these two: with the rows in another order, new moments of the
optimizer, and a learning rate that rises again for some steps.
"""

import argparse
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
from common import DEVICE, ends_of, markdown, way_of, why_lacking
from datasets import Dataset, concatenate_datasets, load_from_disk
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from real_training import training_rows
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerState,
)

from examples.demo.example import Example
from examples.demo.tasks import KINDS, MAX_NEW_TOKENS, check, held_out_examples, training_example
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.prompt_ids import encode
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import device_name
from wedlm.generation.parameters import DEFAULTS
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.run_arguments import RunArguments
from wedlm.training.train import load_model
from wedlm.training.trainer import WeDLMTrainer

WEIGHTS = dict.fromkeys(KINDS, 1) | {"stories": 0}  # in the training
TASKS = [kind for kind, weight in WEIGHTS.items() if weight]
WARM_UP, DECAY = 0.03, 0.7  # shares of the time: the end of the rise, and the start of the fall to nothing
STEPS_OF_RISE = 20  # in each call
SECONDS_BETWEEN_SAVES = 60
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


class Progress:
    """What the record has of the training: its seconds and steps in all calls, the losses, and their end.

    Args:
        record (`Record`): The record.
        folder (`Path`): The folder of the LoRA, which is written before the record.
        seconds (`float`): The seconds of the whole training.
    """

    def __init__(self, record, folder: Path, seconds: float):
        self.record, self.folder, self.whole = record, folder, seconds
        nothing = {"seconds": 0.0, "steps": 0, "calls": 0, "devices": [], "losses": []}
        self.before: dict[str, Any] = record.results.get("training", nothing)
        if self.before["calls"] and not folder.exists():
            raise SystemExit(
                f"{folder} is missing, from which {record.file} goes on; put it there, or remove the record."
            )

    def is_over(self) -> bool:
        return self.before["seconds"] >= self.whole

    def share(self, seconds: float) -> float:
        """How much of the training is over, so many seconds after the start of this call."""
        return (self.before["seconds"] + seconds) / self.whole

    def save(self, model: PeftModel, steps: int, seconds: float, log: list[dict[str, Any]]) -> None:
        save_adapter(model, self.folder)
        names = ("step", "loss", "mlm_loss", "ar_loss", "learning_rate")
        losses = [{name: entry[name] for name in names} for entry in log if "loss" in entry]
        for entry in losses:
            entry["step"] += self.before["steps"]
        now = {"seconds": self.before["seconds"] + seconds, "steps": self.before["steps"] + steps}
        now |= {"calls": self.before["calls"] + 1, "losses": self.before["losses"] + losses}
        now["devices"] = list(dict.fromkeys([*self.before["devices"], device_name(DEVICE)]))
        self.record.add("training", now)


class UntilTheEnd(TrainerCallback):
    """Stops the training at the end of it or of the call, and saves it then and once a minute.

    The learning rate depends on how much of the time is over.
    """

    def __init__(self, progress: Progress, seconds: float):
        self.progress, self.seconds = progress, seconds
        self.start = self.saved = time.perf_counter()

    def factor(self, step: int) -> float:
        share = self.progress.share(time.perf_counter() - self.start)
        return min((step + 1) / STEPS_OF_RISE, share / WARM_UP, 1.0, max(0.0, (1 - share) / (1 - DECAY)))

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = self.saved = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        now = time.perf_counter()
        if now - self.start >= self.seconds or self.progress.share(now - self.start) >= 1:
            control.should_training_stop = True
        if now - self.saved >= SECONDS_BETWEEN_SAVES:
            self.save(model, state, now)

    def on_train_end(self, args, state, control, model=None, **kwargs):
        self.save(model, state, time.perf_counter())

    def save(self, model: PeftModel, state: TrainerState, now: float) -> None:
        self.saved = now
        self.progress.save(model, state.global_step, now - self.start, state.log_history)


def train(given: argparse.Namespace, rows: Dataset, progress: Progress, seconds: float) -> None:
    """Trains for so many seconds, or less if the training is over before."""
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
            seed=progress.before["calls"],
            dataloader_num_workers=min(8, (os.cpu_count() or 1) // 2) if DEVICE == "cuda" else 0,
        )
        model, clock = adapted(given, arguments, progress), UntilTheEnd(progress, seconds)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=given.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, clock.factor)
        trainer = WeDLMTrainer(
            model, arguments, train_dataset=rows, callbacks=[clock], optimizers=(optimizer, schedule)
        )
        trainer.train()


# --- The LoRA ---


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
    """Writes adapter_config.json and the weights as adapter_model-0.safetensors, -1 and so on, all of them or none."""
    (config,) = model.peft_config.values()
    with complete_or_absent(folder, overwrite=True) as new:
        config.save_pretrained(new)
        for number, part in enumerate(parts_of(get_peft_model_state_dict(model))):
            save_file(part, new / f"adapter_model-{number}.safetensors", {"format": "pt"})


def adapted(given: argparse.Namespace, arguments: WeDLMTrainingArguments, progress: Progress) -> PeftModel:
    """The model in float32 with its LoRA, as it was saved or new."""
    run = RunArguments(str(given.model), train_data=[], lora_r=given.rank, dtype="float32")
    model = load_model(run.model, run, arguments)
    if progress.before["calls"]:
        parts = map(load_file, progress.folder.glob("adapter_model-*.safetensors"))
        set_peft_model_state_dict(model, {name: weight for part in parts for name, weight in part.items()})
    return model


# --- Everything ---


def table(results: dict[str, Any]) -> str:
    """The right answers and the tokens per forward by each way, before and after.

    Where a record has answers that were measured later, they stand in place of those after the training.
    """
    lines, after = [], "later" if "later" in results else "after"
    for way in AFTER:
        moments = [results.get(f"{moment}, {way}") for moment in ("before", after)]
        moments = [None if why_lacking(each) else each for each in moments]
        if moments[1]:
            pairs = [(each["right"], f"{each['tokens_per_forward']:.2f}") if each else ("", "") for each in moments]
            lines.append([way, *(cell for pair in pairs for cell in pair)])
    header = ["way", "right before", "tokens per forward", "right after", "tokens per forward"]
    return markdown(header, lines, left={"way"})


def tasks(given: argparse.Namespace, record) -> None:
    """Goes on with the training, or with the answers before and after it, until the minutes of this call are over."""
    examples, tokenizer = held_out(given.questions), AutoTokenizer.from_pretrained(given.model)
    folder = given.out / "adapter"

    def progress() -> Progress:
        return Progress(record, folder, 60 * given.training_minutes)

    def answer(moment: str, model: PreTrainedModel, ways: tuple[str, ...]) -> None:
        for way in ways:
            record.measure(f"{moment}, {way}", answered, model, tokenizer, examples, way)

    with TemporaryDirectory() as place:
        arguments = WeDLMTrainingArguments(place, use_cpu=DEVICE == "cpu")
        if not progress().is_over():
            rows, counts = rows_of(given, Path(place))  # before the GPU is in use
            record.add("data", counts | {"seconds_left": record.seconds_left()})
            if any(record.lacks(f"before, {way}") for way in BEFORE):
                run = RunArguments(str(given.model), train_data=[], dtype="float32")
                answer("before", load_model(run.model, run, arguments).to(DEVICE).eval(), BEFORE)
            if record.seconds_left() > 0:
                train(given, rows, progress(), record.seconds_left())
        if progress().is_over() and any(record.lacks(f"after, {way}") for way in AFTER):
            merged = adapted(given, arguments, progress()).merge_and_unload().to(DEVICE).eval()
            merged.config.mask_trained = True
            answer("after", merged, AFTER)
