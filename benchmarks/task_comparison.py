"""Does a model that is fine-tuned as a WeDLM answer as well as one tuned token by token, in fewer passes?

    python benchmarks/task_comparison.py [--kinds counting equations] [--max_steps 500] [--work build/task-comparison]

SmolLM2-135M-Instruct (`make real-model`) is trained three times as examples/task.yaml says, from the same weights and
on the same questions in the same order. Arguments of `wedlm train` that are given here take the place of the file's.

- plain: transformers' own class and Trainer, all weights, token by token
- whole: `wedlm train`, all weights
- LoRA: `wedlm train`, a LoRA of --rank

Each then answers held-out questions, fused: plain token by token, the others also streaming at several thresholds,
blockwise and verified. All take turns on each question, so their seconds compare. "Right" is the share of right
answers, "difference" the 95 % interval of the difference to the same model token by token, and "times as fast" the
speed as a multiple of its own. A run that was stopped goes on from --work. With --curve all saved checkpoints of a
WeDLM answer: `--curve --save_steps 60 --save_total_limit 9`.
"""

import argparse
import json
import re
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import DEVICE, RESULTS, STOCK, WEDLM, Panel, markdown, new_parser, save
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import wedlm
from examples import task_data
from examples.demo.example import Example
from examples.demo.tasks import MAX_NEW_TOKENS
from wedlm.checkpoints.prompt_ids import encode
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer, Question, answer_of, summaries, summary, write
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.tuning import decide, most_lost
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.training.merge import merge_adapter
from wedlm.training.resume import newest_complete
from wedlm.training.run_arguments import parse
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.train import prepare_datasets, train

CONFIG = Path(task_data.__file__).with_name("task.yaml")
PLAIN, WHOLE, LORA = TRAININGS = ("plain", "whole", "LoRA")
MAX_QUALITY_LOSSES = (0.01, 0.03, 0.05)
WINDOW = [16 if DEVICE == "cuda" else 8]  # what window_size=None means
THRESHOLDS = [0.05, 0.1, 0.2, 0.4]


def decodings_at(thresholds: list[float]) -> dict[str, dict[str, Any]]:
    of_all = combinations([BASELINE, "streaming", "verified"], entropy_threshold=thresholds, window_size=WINDOW)
    return of_all | combinations(["blockwise"], entropy_threshold=[0.1], window_size=WINDOW)


# --- Training ---


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


def train_plain(stock: Path, words: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    run, arguments = parse(words)
    datasets, _ = prepare_datasets(run, arguments, tokenizer)
    model = AutoModelForCausalLM.from_pretrained(stock, dtype=torch.float32)
    trainer = Trainer(model, arguments, one_sample_a_row, datasets["train"])
    trainer.train(resume_from_checkpoint=newest_complete(arguments))
    trainer.save_model()
    trainer.save_state()


def trained(given: argparse.Namespace, rest: list[str], training: str, folder: Path) -> dict[str, Path]:
    """The folder of a trained model, whose LoRA is merged; with --curve also those of its checkpoints."""
    out, tokenizer = folder / training, AutoTokenizer.from_pretrained(given.wedlm)
    words = [str(CONFIG), f"--model={given.wedlm}", f"--train_data={folder / 'train.jsonl'}"]
    words += [f"--output_dir={out}", *rest]
    if training == LORA:
        words += [f"--lora_r={given.rank}", f"--learning_rate={given.low_rank_learning_rate}", "--dtype=float32"]
    if not (out / TRAINER_STATE_NAME).exists():  # the last file
        if training == PLAIN:
            train_plain(given.stock, words, tokenizer)
        else:
            train(words)
    folders = {training: out}
    if given.curve and training != PLAIN:
        steps = sorted(int(each.name.rpartition("-")[2]) for each in out.glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
        if not steps:
            raise SystemExit(f"{out} has no checkpoints; give --save_steps and --save_total_limit.")
        folders = {f"{training} after {step} steps": out / f"{PREFIX_CHECKPOINT_DIR}-{step}" for step in steps}
    if training == LORA:
        for name, one in folders.items():
            merged = folder / f"{name.replace(' ', '-')}-merged"
            folders[name] = merged if merged.exists() else merge_adapter(str(one), merged)
    return folders


# --- Answers ---


def answers_of(
    models: dict[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    decodings: dict[str, dict[str, Any]],
    work: WorkFile,
) -> dict[str, dict[str, list[Answer]]]:
    """The answers of each model in each decoding; these take turns on each question."""

    def calls_of(question: Question) -> dict[str, Callable]:
        return {
            f"{training}, {label}": partial(write, model, question, {**arguments, "max_new_tokens": MAX_NEW_TOKENS})
            for training, model in models.items()
            for label, arguments in decodings.items()
            if training != PLAIN or label == BASELINE
        }

    answers: dict[str, dict[str, list[Answer]]] = {training: {} for training in models}
    for number, question in enumerate(tqdm(questions, unit=" questions")):
        key, calls = ("question", number, digest_of(question.ids)), calls_of(question)
        if key not in work:
            turns = interleaved(calls, DEVICE, 1, int(number == 0), first=number % len(calls))
            work.add(key, {each.name: answer_of(tokenizer, question, each.result, each.seconds) for each in turns})
        for name in calls:
            training, _, label = name.partition(", ")
            answers[training].setdefault(label, []).append(Answer(*work[key][name]))
    return answers


def chosen(answers: dict[str, list[Answer]], decodings: dict[str, Any], max_quality_loss: float) -> str | None:
    """The label of what `wedlm tune` chooses of streaming's thresholds and token by token."""
    to_tune = {label: each for label, each in decodings.items() if each["decoding"] in (BASELINE, "streaming")}
    some = {label: answers[label] for label in to_tune}
    lost = most_lost(some, to_tune)
    results = {label: each | {"most_lost": lost[label]} for label, each in summaries(some, to_tune).items()}
    return decide(some, results, max_quality_loss)[0]


def measure(
    given: argparse.Namespace,
    tokenizer: PreTrainedTokenizerBase,
    folders: dict[str, Path],
    decodings: dict[str, dict[str, Any]],
    work: WorkFile,
) -> dict[str, Any]:
    """The summary of each model in each decoding, beside plain token by token; with the qualities of each kind."""
    models: dict[str, PreTrainedModel] = {
        training: wedlm.fuse(AutoModelForCausalLM.from_pretrained(folder, dtype=given.dtype).to(DEVICE).eval())
        for training, folder in folders.items()
    }
    one = next(iter(models.values()))
    examples: list[Example] = task_data.test_examples(given.kinds, given.questions, given.seed)
    questions = [
        Question(encode(one, tokenizer, each.prompt), lambda text, each=each: float(task_data.check(each, text)))
        for each in examples
    ]
    answers, results = answers_of(models, tokenizer, questions, decodings, work), {}
    for training, of_training in answers.items():
        for label, of_label in of_training.items():
            numbers = summary(of_label, of_training[BASELINE], is_exact=label == BASELINE or "verified" in label)
            if PLAIN in answers:
                over_plain = summary(of_label, answers[PLAIN][BASELINE], is_exact=training == PLAIN)
                numbers["quality_over_plain_interval"] = over_plain["quality_over_autoregressive_interval"]
            numbers["quality_of_kinds"] = {
                kind: sum(a.quality for a, e in zip(of_label, examples, strict=True) if e.kind == kind)
                / sum(e.kind == kind for e in examples)
                for kind in given.kinds
            }
            results[f"{training}, {label}"] = numbers
    tuned = {
        training: {f"{loss:.0%}": chosen(each, decodings, loss) for loss in MAX_QUALITY_LOSSES}
        for training, each in answers.items()
        if training != PLAIN
    }
    return {"answers": results, "chosen": tuned}


def table(results: dict[str, Any]) -> str:
    """For docs/train.md, which a test compares; each model is compared with itself, token by token."""
    lines = []
    for name, numbers in results.items():
        low, high = (100 * bound for bound in numbers["quality_over_autoregressive_interval"])
        times = numbers["times_autoregressive"]
        slow, fast = times["quartiles"]
        is_base = name.endswith(BASELINE)
        lines.append(
            [
                re.sub(r", window \d+", "", name.replace(BASELINE, "token by token")),
                f"{100 * numbers['quality']:.1f} %",
                "" if is_base else f"{low:+.1f} to {high:+.1f}",
                f"{numbers['tokens_per_forward']:.2f}",
                f"{100 * numbers['same_text_as_autoregressive']:.0f} %",
                "" if is_base else f"{times['median']:.2f} ({slow:.2f} to {fast:.2f})",
            ]
        )
    header = ["trained, decoding", "right", "difference", "tokens per pass", "same output", "times as fast"]
    return markdown(header, lines, left={"trained, decoding"})


def curve(results: dict[str, Any]) -> str:
    """For docs/train.md: the right answers and the tokens per forward pass of each checkpoint in each decoding."""
    lines: dict[str, dict[str, str]] = {}
    for name, numbers in results.items():
        trained, label = re.sub(r", window \d+", "", name.replace(BASELINE, "token by token")).split(", ", 1)
        cell = f"{100 * numbers['quality']:.0f} % at {numbers['tokens_per_forward']:.2f}"
        lines.setdefault(trained, {})[label] = cell
    labels = list(dict.fromkeys(label for cells in lines.values() for label in cells))
    rows = [[trained, *(cells.get(label, "") for label in labels)] for trained, cells in lines.items()]
    return markdown(["trained", *labels], rows, left={"trained"})


def headline(record: dict[str, Any]) -> str:
    """For README.md, which a test compares."""
    answers = record["results"]["answers"]
    minutes = record["results"]["trainings"][LORA][-1]["train_runtime"] / 60
    own = answers[f"{LORA}, {BASELINE}"]
    (verified,) = (numbers for name, numbers in answers.items() if name.startswith(f"{LORA}, verified"))
    return (
        f"A LoRA of SmolLM2-135M-Instruct for small Python functions, trained for {minutes:.0f} minutes on "
        f"{record['threads']} CPU threads, gets {100 * own['quality']:.0f} % right token by token. Verified, it gets "
        f"{100 * verified['quality']:.0f} % right, at {verified['tokens_per_forward']:.2f} tokens per forward pass "
        f"and {verified['times_autoregressive']['median']:.2f}x the speed."
    )


def panels(results: dict[str, Any]) -> list[Panel]:
    """The picture of docs/train.md."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, numbers in results.items():
        training, decoding = name.split(", ")[:2]
        shown = f"{training}, {'token by token' if decoding == BASELINE else decoding}"
        lines.setdefault(shown, []).append((numbers["tokens_per_forward"], 100 * numbers["quality"]))
    return [Panel("", "tokens per forward pass", "right answers, %", lines, is_log=False)]


def main() -> None:
    parser = new_parser(__doc__, "task_comparison")
    parser.add_argument("--stock", type=Path, default=STOCK, help="the model")
    parser.add_argument("--wedlm", type=Path, default=WEDLM, help="the same as a WeDLM")
    parser.add_argument("--work", type=Path, default=RESULTS.parents[1] / "build" / "task-comparison")
    parser.add_argument(
        "--kinds", nargs="+", choices=[*task_data.TASKS, *task_data.GYM_TASKS], default=list(task_data.TASKS)
    )
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=TRAININGS)
    parser.add_argument("--samples", type=int, default=10_500, help="questions to train on")
    parser.add_argument("--curve", action="store_true", help="let all saved checkpoints answer")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--low-rank-learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--thresholds", type=float, nargs="+", default=THRESHOLDS, help="of streaming")
    parser.add_argument("--questions", type=int, default=500, help="held-out ones")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out questions")
    parser.add_argument("--dtype", default="float32", help="of the answers")
    given, rest = parser.parse_known_args()
    names = ("kinds", "samples", "rank", "low_rank_learning_rate")
    settings = {name: getattr(given, name) for name in names}
    if of_gym := {kind: task_data.GYM_TASKS[kind] for kind in given.kinds if kind in task_data.GYM_TASKS}:
        settings |= {"reasoning_gym": version("reasoning-gym"), "sizes": of_gym}
    settings["config"] = CONFIG.read_text(encoding="utf-8").splitlines() + rest
    folder = given.work / digest_of(settings)
    chats = ({"messages": each.messages} for each in task_data.train_examples(given.kinds, given.samples))
    if not (data := folder / "train.jsonl").exists():
        task_data.write_lines(data, chats)
    folders: dict[str, Path] = {}
    for training in given.trainings:
        folders |= trained(given, rest, training, folder)
    states = {training: folder / training / TRAINER_STATE_NAME for training in given.trainings}
    logs = {
        training: json.loads(state.read_text(encoding="utf-8"))["log_history"] for training, state in states.items()
    }
    decodings = decodings_at(given.thresholds)
    asked = {"seed": given.seed, "dtype": given.dtype, "decodings": decodings, "trainings": list(folders)}
    tokenizer, work = AutoTokenizer.from_pretrained(given.wedlm), WorkFile(folder / "answers", asked)
    results = {"trainings": logs, **measure(given, tokenizer, folders, decodings, work)}
    print((curve if given.curve else table)(results["answers"]))
    save(given.out, results, DEVICE, **settings, questions=given.questions, seed=given.seed, dtype=given.dtype)


if __name__ == "__main__":
    main()
