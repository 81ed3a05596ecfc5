"""The paper's two ablations of training, on a model that two CPU cores train in minutes.

    python benchmarks/ablations_training.py block-size
    python benchmarks/ablations_training.py inside-block

1. A random model learns two kinds of the demo's tasks, counting and equations, token by token: the base.
2. Variants go on from it with WeDLM's objective, all with the same steps on the same rows in the same order: causal
   attention in blocks of 4, 8 and 32 (block-size), or causal and bidirectional attention in blocks of 32
   (inside-block, where a prediction row sees all of its block; bidirectional.py has it, and the package does not).
   Every sample is filled up with end tokens to whole blocks of 32, for the base as well: else the number of MASK rows
   in its last block would tell a bidirectional variant where the text ends, and in decoding nothing does.
3. All answer the same held-out questions, with one token per forward, that of the lowest entropy, as the paper's
   quality numbers were made. Bidirectional blocks cannot be streamed, so that `decode` below decodes both kinds of
   attention blockwise: with a window as large as the blocks of training, and with the paper's window of 6.
4. The numbers go into a JSON file, and the plot is drawn from that file alone.

Checkpoints and answers are kept in a work folder: a run that was stopped goes on there, and the second ablation finds
the base and the blocks of 32 of the first. One seed of training: the intervals are of the questions and no more.
"""

import argparse
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from bidirectional import bidirectional_blocks
from datasets import Dataset
from transformers import AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import get_last_checkpoint

from wedlm import DualStreamCollator, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.checkers import check
from wedlm.demo.recipe import SEED, MuonAndAdamW, random_model
from wedlm.demo.report import batch_of
from wedlm.demo.tasks import Example, example, held_out_examples
from wedlm.evaluation.provenance import conditions, write_report
from wedlm.evaluation.resampling import paired_bounds
from wedlm.evaluation.work_file import digest_of
from wedlm.modeling_wedlm.dual_stream import MEMORY
from wedlm.modeling_wedlm.target_loss import NO_TARGET
from wedlm.training.packing import pack_batch

KINDS = ("functions", "equations")
LARGEST_BLOCK = 32
ROW_TOKENS = 192
SAMPLES_PER_ROW = 2.4  # at most, on the average: enough are drawn that no row comes twice
MAX_NEW_TOKENS = 96  # three of the largest windows; the longest right answer has 73
PAPERS_WINDOW, PAPERS_PENALTY = 6, 0.1
BATCH_SIZE = 100

Inside = Literal["causal", "bidirectional"]


class Variant(NamedTuple):
    block_size: int
    inside: Inside

    @property
    def name(self) -> str:
        return f"{self.inside} blocks of {self.block_size}"


REFERENCE = Variant(LARGEST_BLOCK, "causal")
VARIANTS = {
    "block-size": [Variant(4, "causal"), Variant(8, "causal"), REFERENCE],
    "inside-block": [REFERENCE, Variant(LARGEST_BLOCK, "bidirectional")],
}
BASE = "base"
TOKEN_BY_TOKEN = "token by token"
BOTH = "both"  # kinds
COMPARED_WITH = (BASE, "reference")
SETTINGS = (
    "base_steps",
    "steps",
    "learning_rate",
    "rows_per_step",
    "hidden_size",
    "num_layers",
)  # what decides weights

# --- Training ---


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
    indices = range(int(first_row * SAMPLES_PER_ROW), int((first_row + num_rows) * SAMPLES_PER_ROW))
    samples = [sample(tokenizer, index) for index in indices]
    columns = {name: [one[name] for one in samples] for name in samples[0]}
    return Dataset.from_dict(pack_batch(columns, ROW_TOKENS))


class MemoryCollator(DualStreamCollator):
    """The clean tokens alone, so that the autoregressive loss is all there is."""

    def dual_stream_row(self, row) -> dict[str, np.ndarray]:
        columns = super().dual_stream_row(row)
        return {name: column[columns["stream_ids"] == MEMORY] for name, column in columns.items()}


def train(
    model: PreTrainedModel,
    rows: Dataset,
    folder: Path,
    num_steps: int,
    given: argparse.Namespace,
    variant: Variant | None = None,
) -> dict:
    """Trains the model, token by token if without a variant, and returns what was logged; goes on where it stopped."""
    arguments = WeDLMTrainingArguments(
        str(folder),
        seed=SEED,
        max_steps=num_steps,
        per_device_train_batch_size=given.rows_per_step,
        learning_rate=given.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=num_steps // 20,
        block_size=LARGEST_BLOCK if variant is None else variant.block_size,
        attn_implementation="sdpa",  # what bidirectional_blocks() changes
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
    last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    is_bidirectional = variant is not None and variant.inside == "bidirectional"
    with bidirectional_blocks() if is_bidirectional else nullcontext():
        outcome = trainer.train(resume_from_checkpoint=last)
    names = ("step", "ar_loss") if variant is None else ("step", "ar_loss", "mlm_loss")
    log = [{name: entry[name] for name in names} for entry in trainer.state.log_history if "ar_loss" in entry]
    first_step = int(last.rpartition("-")[2]) if last else 0
    return {"first_step": first_step, "seconds": outcome.metrics["train_runtime"], "losses": log}


# --- Decoding, for the eye ---


def sees_inside(window_size: int, inside: Inside) -> torch.Tensor:
    """`[rows, rows]`: whom the rows of a window see in it."""
    everyone = torch.ones(window_size, window_size, dtype=torch.bool)
    return everyone.tril() if inside == "causal" else everyone


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    inside: Inside,
    window_size: int,
    distance_penalty: float,
    max_new_tokens: int,
) -> torch.Tensor:
    """Blockwise, one token per forward, that of the lowest entropy. Returns `[batch, tokens]`, past the end token.

    1. The clean text, causal: the prompt, and then each window that is full. Its keys and values are kept.
    2. As often as the window has slots: its filled slots, then a MASK token per open slot, both in the order of their
       positions, see all clean text and each other as `inside` says; the slot of the lowest entropy is filled.

    All prompts fill their windows at the same time. Texts that have ended go on to the end of the last one.
    """
    tokens, is_token = inputs["input_ids"], inputs["attention_mask"].bool()  # [batch, prompt], padded on the left
    batch_size, prompt_size = tokens.shape
    lengths = is_token.sum(1, keepdim=True)  # [batch, 1]
    positions = (is_token.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    clean, text = tokens, tokens[:, :0]

    def forward(rows: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        return model(
            rows, position_ids=positions, attention_mask=sees[:, None], past_key_values=cache, use_cache=True
        ).logits

    while True:
        # 1. The clean text.
        size, start = clean.shape[1], text.shape[1]
        is_token = torch.cat([is_token, is_token.new_ones(batch_size, prompt_size + start - is_token.shape[1])], dim=1)
        causal = torch.ones(size, is_token.shape[1], dtype=torch.bool).tril(is_token.shape[1] - size)
        itself = torch.ones_like(causal).triu(is_token.shape[1] - size) & causal  # so that padding sees anything
        forward(clean, positions, is_token[:, None] & causal | itself)
        num_slots = min(window_size, max_new_tokens - start)
        has_ended = (text == model.config.eos_token_id).any(1)
        if num_slots == 0 or has_ended.all():
            return text

        # 2. The window.
        window = tokens.new_full((batch_size, num_slots), model.config.mask_token_id)
        is_open = torch.ones_like(window, dtype=torch.bool)
        seen_text = is_token[:, None].expand(-1, num_slots, -1)
        seen_slots = sees_inside(num_slots, inside).expand(batch_size, -1, -1)
        sees = torch.cat([seen_text, seen_slots], dim=2)
        for num_filled in range(num_slots):
            order = is_open.long().argsort(dim=1, stable=True)  # [batch, rows], the slot of each row
            logits = forward(window.gather(1, order), lengths + start + order, sees)[:, num_filled:]
            cache.crop(-num_slots)
            slots = order[:, num_filled:]  # the open ones, [batch, open]
            log_chances = logits.log_softmax(-1)
            entropy = -(log_chances.exp() * log_chances).sum(-1)
            row = (entropy + distance_penalty * (slots - slots[:, :1])).argmin(dim=1, keepdim=True)  # [batch, 1]
            logits[..., model.config.mask_token_id] = -torch.inf
            slot = slots.gather(1, row)
            window.scatter_(1, slot, logits.argmax(-1).gather(1, row))
            is_open.scatter_(1, slot, False)
        clean, text = window, torch.cat([text, window], dim=1)
        positions = lengths + start + torch.arange(num_slots)


# --- Judging ---


class Answer(NamedTuple):
    text: str
    is_right: bool


def answers_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: list[Example],
    write: Callable[[dict], torch.Tensor],
) -> list[Answer]:
    """`write(inputs)` is `[batch, tokens]`, the new ones alone, and whatever comes behind the end token."""
    answers, end = [], tokenizer.eos_token_id
    for start in range(0, len(examples), BATCH_SIZE):
        part = examples[start : start + BATCH_SIZE]
        for question, written in zip(part, write(batch_of(tokenizer, part, model.device)).tolist(), strict=True):
            written = written[: written.index(end) + 1] if end in written else written
            text = tokenizer.decode(written, skip_special_tokens=True)
            answers.append(Answer(text, check(question.kind, question.prompt, text)))
    return answers


def autoregressive(model: PreTrainedModel) -> Callable[[dict], torch.Tensor]:
    def write(inputs: dict) -> torch.Tensor:
        how = {"decoding": "autoregressive", "do_sample": False, "max_new_tokens": MAX_NEW_TOKENS}
        return model.generate(**inputs, **how)[:, inputs["input_ids"].shape[1] :]

    return write


def windows_of(variant: Variant) -> dict[str, int]:
    return {"window of its blocks": variant.block_size, f"window of {PAPERS_WINDOW}": PAPERS_WINDOW}


def in_windows(model: PreTrainedModel, variant: Variant, window_size: int) -> Callable[[dict], torch.Tensor]:
    return lambda inputs: decode(model, inputs, variant.inside, window_size, PAPERS_PENALTY, MAX_NEW_TOKENS)


# --- What is kept ---


def kept(path: Path, make: Callable[[], list | dict]) -> list | dict:
    """What `path` holds as JSON; if there is none, what `make` returns, which is written there at once."""
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
    """The model and what was logged; it is trained now unless `folder` has it finished."""

    def finish() -> dict:
        print(f"{folder.name}: {num_steps} steps", flush=True)
        model = new_model()
        log = train(model, new_rows(), folder / "run", num_steps, given, variant)
        model.config.use_cache = True  # which Trainer switched off
        model.save_pretrained(folder / "checkpoint")
        return log

    log = kept(folder / "training.json", finish)
    return WeDLMForCausalLM.from_pretrained(folder / "checkpoint").eval(), log


# --- What is measured ---

Answers = dict[tuple[str, str], dict[str, list[Answer]]]  # by model and decoding, by kind


def measure(variants: list[Variant], given: argparse.Namespace) -> tuple[dict[str, dict], Answers]:
    """What was logged in training, by model, and the answers."""
    settings = {name: getattr(given, name) for name in SETTINGS if name != "steps"}
    # Of the same commit, as the file will say; and of the same questions, where there are changes.
    folder = given.work / digest_of({**settings, **conditions("cpu"), "code": Path(__file__).read_text("utf-8")})
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    examples = {kind: held_out_examples(kind, given.num_questions) for kind in KINDS}
    base_rows, rows = (steps * given.rows_per_step for steps in (given.base_steps, given.steps))
    logs, answers = {}, {}

    def folder_of(name: str) -> Path:
        return folder / (name if name == BASE else f"{name}, {given.steps} steps")  # of any number, from one base

    def answer(name: str, decoding: str, model: PreTrainedModel, write: Callable) -> None:
        made = kept(
            folder_of(name) / f"{given.num_questions} answers, {decoding}.json",
            lambda: {kind: answers_of(model, tokenizer, examples[kind], write) for kind in KINDS},
        )
        answers[name, decoding] = {kind: [Answer(*one) for one in made[kind]] for kind in KINDS}
        right = {kind: np.mean([one.is_right for one in answers[name, decoding][kind]]) for kind in KINDS}
        print(f"{name}, {decoding}: right", *(f"{kind} {share:.1%}" for kind, share in right.items()), flush=True)

    base, logs[BASE] = trained(
        folder_of(BASE),
        lambda: random_model(tokenizer, given.hidden_size, given.num_layers),
        lambda: training_rows(tokenizer, 0, base_rows),
        given.base_steps,
        given,
    )
    answer(BASE, TOKEN_BY_TOKEN, base, autoregressive(base))
    for variant in variants:
        model, logs[variant.name] = trained(
            folder_of(variant.name),
            lambda: WeDLMForCausalLM.from_pretrained(folder_of(BASE) / "checkpoint"),
            lambda: training_rows(tokenizer, base_rows, rows),
            given.steps,
            given,
            variant,
        )
        answer(variant.name, TOKEN_BY_TOKEN, model, autoregressive(model))
        for decoding, window_size in windows_of(variant).items():
            answer(variant.name, decoding, model, in_windows(model, variant, window_size))
    return logs, answers


def rows_of(answers: Answers) -> list[dict]:
    """One of each model, decoding and kind; the bounds of a difference hold 95 %, of the questions taken in pairs."""
    rows = []
    for kind in (*KINDS, BOTH):
        is_right = {
            way: np.array(
                [answer.is_right for one in of_kind if kind in (one, BOTH) for answer in of_kind[one]], dtype=float
            )
            for way, of_kind in answers.items()
        }
        for (model, decoding), right in is_right.items():
            row = {"model": model, "decoding": decoding, "kind": kind, "accuracy": right.mean()}
            others = {"base": (BASE, TOKEN_BY_TOKEN), "reference": (REFERENCE.name, decoding)} if model != BASE else {}
            for name, way in others.items():
                row[f"over_{name}"] = right.mean() - is_right[way].mean()
                row[f"over_{name}_interval"] = paired_bounds(right, is_right[way])
            rows.append(row)
    return rows


def points(row: dict, other: str) -> str:
    if row["model"] == BASE or (row["model"] == REFERENCE.name and other == "reference"):
        return ""
    low, high = row[f"over_{other}_interval"]
    return f"{100 * row[f'over_{other}']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def table(results: dict) -> str:
    """Markdown. Answers right, in %; differences in percentage points, with intervals."""
    lines = [
        f"| model | decoding | {' | '.join(KINDS)} | both | over the base | over {REFERENCE.name} |",
        f"| --- | --- |{' ---: |' * (len(KINDS) + 3)}",
    ]
    of = {(row["model"], row["decoding"], row["kind"]): row for row in results["rows"]}
    for model, decoding in dict.fromkeys(key[:2] for key in of):
        *kinds, both = (of[model, decoding, kind] for kind in (*KINDS, BOTH))
        cells = [model, decoding, *(f"{row['accuracy']:.1%}" for row in (*kinds, both))]
        lines.append(f"| {' | '.join([*cells, *(points(both, other) for other in COMPARED_WITH)])} |")
    return "\n".join(lines)


# What the paper has in its figures 5b and 5c: percentage points over the autoregressive base model. Figure 5b has
# averages, of which that of blocks of 32 is WeDLM-7B's; its base has 67.21.
PAPER = {
    "block-size": {"Qwen2.5-7B": [71.23 - 67.21, 70.45 - 67.21, 70.84 - 67.21]},
    "inside-block": {
        "Qwen3-0.6B": [-3.91, -5.02],
        "Qwen2.5-1.5B": [-0.57, -0.48],
        "Qwen2.5-7B": [+3.63, -0.11],
    },
}
X_LABELS = {"block-size": "block size in training (tokens)", "inside-block": "attention inside blocks of 32 tokens"}
LINE = {"markersize": 6, "linewidth": 1, "capsize": 3}
STYLES = [
    {"marker": "o", "linestyle": "-", "color": "black"},
    {"marker": "s", "linestyle": "--", "color": "dimgrey", "markerfacecolor": "white"},
    {"marker": "^", "linestyle": ":", "color": "tab:blue"},
]


def plot(report: dict, path: Path) -> None:
    """Readable in grey: a panel for each kind, and one for the paper."""
    from matplotlib.figure import Figure

    ablation, rows = report["ablation"], report["results"]["rows"]
    names = {variant.name: str(variant[ablation == "inside-block"]) for variant in VARIANTS[ablation]}
    decodings = dict.fromkeys(row["decoding"] for row in rows if row["model"] != BASE)
    places = np.arange(len(names))
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    *panels, papers = figure.subplots(1, len(KINDS) + 2)
    for axes, kind in zip(panels, (*KINDS, BOTH), strict=True):
        of = {(row["model"], row["decoding"]): row for row in rows if row["kind"] == kind}
        for number, (decoding, style) in enumerate(zip(decodings, STYLES, strict=True)):
            of_models = [of[name, decoding] for name in names]
            values = np.array([row["over_base"] for row in of_models])
            bounds = np.array([row["over_base_interval"] for row in of_models]).T
            bars = 100 * np.abs(bounds - values)
            axes.errorbar(places + 0.12 * (number - 1), 100 * values, bars, label=decoding, **style, **LINE)
        axes.set_title(f"{kind} (base: {of[BASE, TOKEN_BY_TOKEN]['accuracy']:.1%})".replace(BOTH, "both kinds"))
    limits = [limit for axes in panels for limit in axes.get_ylim()]
    for axes in panels:
        axes.set_ylim(min(limits), max(limits))
    for (model, values), style in zip(report["results"]["paper"].items(), STYLES, strict=False):
        papers.errorbar(places, values, label=model, **style, **LINE)
    papers.set_title("the paper (averages of its tests)")
    papers.legend(title="base model")
    for axes in (*panels, papers):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(places, names.values())
        axes.set(xlabel=X_LABELS[ablation], xlim=(-0.4, len(names) - 0.6))
    panels[0].set_ylabel("right answers, over the base (percentage points)")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), title="decoding (bars: 95 %)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ablation", choices=VARIANTS)
    parser.add_argument("--base-steps", type=int, default=2000, help="of training token by token")
    parser.add_argument("--steps", type=int, default=1200, help="of training of each variant")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--rows-per-step", type=int, default=4, help=f"of {ROW_TOKENS} tokens")
    parser.add_argument("--hidden-size", type=int, default=96)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--num-questions", type=int, default=250, help="held-out ones of each kind")
    parser.add_argument("--save-steps", type=int, default=100, help="after how many a stopped training goes on")
    parser.add_argument("--work", type=Path, default=here.parent / "build" / "ablations-training")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/ablation_....json")
    parser.add_argument("--plot", type=Path, help="by default docs/evidence/....png")
    given = parser.parse_args()
    name = given.ablation.replace("-", "_")
    out = given.out or here / "results" / f"ablation_{name}.json"
    logs, answers = measure(VARIANTS[given.ablation], given)
    results = {"models": logs, "rows": rows_of(answers), "paper": PAPER[given.ablation]}
    settings = {name: getattr(given, name) for name in (*SETTINGS, "num_questions")}
    write_report(out, results, "cpu", ablation=given.ablation, **settings)
    plot(json.loads(out.read_text(encoding="utf-8")), given.plot or here.parent / "docs" / "evidence" / f"{name}.png")
    print(table(results))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
