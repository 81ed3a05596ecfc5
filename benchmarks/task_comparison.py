"""Does a model that WeDLMTrainer tunes on a task answer it as well as one tuned token by token, in fewer forwards?

    python benchmarks/task_comparison.py [--steps 600] [--kinds counting equations ...] [--work build/task-comparison]

SmolLM2-135M-Instruct (`make real-model`) sees questions of the demo's kinds with their right answers, three times from
the same weights, in the same order, as many steps:

- plain: transformers' Trainer with its own class, all weights, token by token
- whole: WeDLMTrainer, all weights
- LoRA: WeDLMTrainer, a LoRA of --rank

Then each answers held-out questions, fused, in float32: plain token by token, the others also streaming at several
thresholds, blockwise and verified. All take turns on each question, so their seconds compare. Qualities are shares of
right answers, with 95 % intervals of the difference to plain. A run that was stopped goes on from --work.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import DEVICE, RESULTS, STOCK, WEDLM, markdown, new_parser, save
from datasets import Dataset
from peft import PeftModel
from real_training import training_rows
from task_training import TASKS, WEIGHTS
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
)

import wedlm
from examples.demo.example import Example
from examples.demo.tasks import MAX_NEW_TOKENS, check, example, held_out_examples
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer, Question, answer_of, summary, write
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.resume import newest_complete
from wedlm.training.run_arguments import RunArguments
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.train import load_model
from wedlm.training.trainer import WeDLMTrainer

PLAIN, WHOLE, LORA = "plain", "whole", "LoRA"
DECODINGS = {BASELINE: {"decoding": BASELINE}} | combinations(
    ["streaming", "blockwise", "verified"], entropy_threshold=[0.05, 0.1, 0.2, 0.4], window_size=[16]
)
# What decides the trained weights.
SETTINGS = (
    "kinds", "samples", "row_tokens", "steps", "rows_per_step", "learning_rate", "rank", "low_rank_learning_rate",
    "block_size", "suffix_mask_probability", "bf16",
)  # fmt: skip


def prompt_of(tokenizer: PreTrainedTokenizerBase, each: Example) -> list[int]:
    chat = each.messages[:1]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]


# --- Training ---


def rows_of(given: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> tuple[Dataset, dict[str, int]]:
    """Questions of the kinds in turns with their right answers, packed into rows."""
    kinds, end = given.kinds, GenerationConfig.from_pretrained(given.stock).eos_token_id
    examples = [example(kinds[index % len(kinds)], "train", index) for index in range(given.samples)]
    prompts = [prompt_of(tokenizer, each) for each in examples]
    answers = tokenizer([each.answer for each in examples], add_special_tokens=False)["input_ids"]
    end = end[0] if isinstance(end, list) else end
    return training_rows(prompts, [[*ids, end] for ids in answers], given.row_tokens)


def one_sample_a_row(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The samples of packed rows one below the other, padded: transformers' classes see no borders in a row."""
    samples = []
    for row in rows:
        columns = [torch.tensor(row[name]).split(row["sample_lengths"]) for name in ("input_ids", "labels")]
        samples += zip(*columns, strict=True)
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    ids, labels = zip(*samples, strict=True)
    attended = pad([torch.ones_like(each) for each in ids])
    return {"input_ids": pad(ids), "labels": pad(labels, padding_value=NO_TARGET), "attention_mask": attended}


def arguments_of(given: argparse.Namespace, training: str, folder: Path) -> WeDLMTrainingArguments:
    return WeDLMTrainingArguments(
        str(folder),
        max_steps=given.steps,
        per_device_train_batch_size=given.rows_per_step,
        learning_rate=given.low_rank_learning_rate if training == LORA else given.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=given.steps // 20,
        adam_beta2=0.98,
        block_size=given.block_size,
        suffix_mask_probability=given.suffix_mask_probability,
        bf16=given.bf16,
        use_cpu=DEVICE == "cpu",
        logging_steps=max(1, given.steps // 50),
        save_steps=max(1, given.steps // 10),
        save_total_limit=1,
        report_to="none",
        remove_unused_columns=False,
    )


def trained(given: argparse.Namespace, training: str, rows: Dataset, folder: Path) -> tuple[Path, list[dict]]:
    """The folder of a trained model, whose LoRA is merged, and the log of its training."""
    out, log = folder / training / "model", folder / training / "log.json"
    if not out.exists():
        arguments = arguments_of(given, training, folder / training / "run")
        if training == PLAIN:
            model = AutoModelForCausalLM.from_pretrained(given.stock, dtype=torch.float32)
            trainer = Trainer(model, arguments, one_sample_a_row, rows)
        else:
            rank = given.rank if training == LORA else 0
            run = RunArguments(str(given.wedlm), train_data=[], lora_r=rank, dtype="float32")
            trainer = WeDLMTrainer(load_model(run.model, run, arguments), arguments, train_dataset=rows)
        begin = time.perf_counter()
        trainer.train(resume_from_checkpoint=newest_complete(arguments))
        print(f"{training}: {time.perf_counter() - begin:.0f} s of this call.")
        model = trainer.model.merge_and_unload() if isinstance(trainer.model, PeftModel) else trainer.model
        if training != PLAIN:
            model.config.mask_trained = True
        write_whole(log, json.dumps(trainer.state.log_history) + "\n")
        with complete_or_absent(out, overwrite=False) as new:
            model.save_pretrained(new)
    return out, json.loads(log.read_text(encoding="utf-8"))


# --- Answers ---


def answers_of(
    models: dict[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    work: WorkFile,
) -> dict[str, list[Answer]]:
    """The answers of each model in each decoding by "TRAINING, DECODING", which take turns on each question."""

    def calls_of(question: Question) -> dict[str, Callable]:
        return {
            f"{training}, {label}": partial(write, model, question, {**arguments, "max_new_tokens": MAX_NEW_TOKENS})
            for training, model in models.items()
            for label, arguments in DECODINGS.items()
            if training != PLAIN or label == BASELINE
        }

    answers: dict[str, list[Answer]] = {}
    for number, question in enumerate(tqdm(questions, unit=" questions")):
        key, calls = ("question", number, digest_of(question.ids)), calls_of(question)
        if key not in work:
            turns = interleaved(calls, DEVICE, 1, int(number == 0), first=number % len(calls))
            work.add(key, {each.name: answer_of(tokenizer, question, each.result, each.seconds) for each in turns})
        for name in calls:
            answers.setdefault(name, []).append(Answer(*work[key][name]))
    return answers


def measure(
    given: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, folders: dict[str, Path], work: WorkFile
) -> dict[str, Any]:
    """The summary of each model in each decoding, beside plain token by token; with the qualities of each kind."""
    examples = [
        each
        for kind in given.kinds
        for each in held_out_examples(kind, math.ceil(given.questions / len(given.kinds)), given.seed)
    ]
    questions = [
        Question(prompt_of(tokenizer, each), lambda text, each=each: float(check(each, text))) for each in examples
    ]
    models = {
        training: wedlm.fuse(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval())
        for training, folder in folders.items()
    }
    answers, results = answers_of(models, tokenizer, questions, work), {}
    base = answers[f"{PLAIN}, {BASELINE}"]
    for name, of_name in answers.items():
        numbers = summary(of_name, base, is_exact=name == f"{PLAIN}, {BASELINE}")
        numbers = {key.replace("autoregressive", "plain"): value for key, value in numbers.items()}
        own = answers[f"{name.partition(', ')[0]}, {BASELINE}"]
        numbers["same_text_as_its_own_token_by_token"] = sum(
            one.text == other.text for one, other in zip(of_name, own, strict=True)
        ) / len(own)
        numbers["quality_of_kinds"] = {
            kind: sum(a.quality for a, e in zip(of_name, examples, strict=True) if e.kind == kind)
            / sum(e.kind == kind for e in examples)
            for kind in given.kinds
        }
        results[name] = numbers
    return results


def table(results: dict[str, Any]) -> str:
    lines = []
    for name, numbers in results.items():
        low, high = (100 * bound for bound in numbers["quality_over_plain_interval"])
        is_base, times = name == f"{PLAIN}, {BASELINE}", numbers["times_plain"]
        slow, fast = times["quartiles"]
        lines.append(
            [
                name,
                f"{100 * numbers['quality']:.1f} %",
                "" if is_base else f"{low:+.1f} to {high:+.1f}",
                f"{numbers['tokens_per_forward']:.2f}",
                f"{100 * numbers['same_text_as_its_own_token_by_token']:.0f} %",
                "" if is_base else f"{times['median']:.2f} ({slow:.2f} to {fast:.2f})",
            ]
        )
    header = ["trained, decoding", "right", "over plain", "tokens per forward", "own text", "times as fast as plain"]
    return markdown(header, lines, left={"trained, decoding"})


def main() -> None:
    parser = new_parser(__doc__, "task_comparison")
    parser.add_argument("--stock", type=Path, default=STOCK, help="the model")
    parser.add_argument("--wedlm", type=Path, default=WEDLM, help="the same as a WeDLM")
    parser.add_argument("--work", type=Path, default=RESULTS.parents[1] / "build" / "task-comparison")
    parser.add_argument("--kinds", nargs="+", choices=WEIGHTS, default=TASKS)
    parser.add_argument("--trainings", nargs="+", choices=(PLAIN, WHOLE, LORA), default=[PLAIN, WHOLE, LORA])
    parser.add_argument("--samples", type=int, default=40_000, help="the most examples to train on")
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--rows-per-step", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--low-rank-learning-rate", type=float, default=1e-3)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--suffix-mask-probability", type=float, default=0.5)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--questions", type=int, default=500, help="held-out ones")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out questions")
    given = parser.parse_args()
    settings = {name: getattr(given, name) for name in SETTINGS}
    folder = given.work / digest_of(settings)
    tokenizer = AutoTokenizer.from_pretrained(given.wedlm)
    rows, counts = rows_of(given, tokenizer)
    folders, logs = {}, {}
    for training in given.trainings:
        folders[training], logs[training] = trained(given, training, rows, folder)
    work = WorkFile(folder / "answers", {"seed": given.seed, "trainings": given.trainings, "decodings": DECODINGS})
    results = {"data": counts, "trainings": logs, "answers": measure(given, tokenizer, folders, work)}
    print(table(results["answers"]))
    save(given.out, results, DEVICE, **settings, questions=given.questions, seed=given.seed)


if __name__ == "__main__":
    main()
