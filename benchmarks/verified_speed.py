"""Verified decoding beside token by token: models x kinds of text x batch sizes, with the goals beside the numbers.

    python benchmarks/verified_speed.py [--models demo base adapter] [--batch-sizes 1 8] [--kinds json maths ...]
                                        [--new-tokens 64] [--repeats 2] [--out benchmarks/results/verified_speed.json]

`base` is SmolLM2-135M-Instruct as `make real-model` converts it, `adapter` the same with the adapter of `hub_card/`.
Prompts are held out: none of them trained the adapter or the demo. A call answers a batch of one kind greedily, and
the ways take turns in every round. Before the rounds each model writes one answer in each way.

The goals: with the default window and query_cost at least 0.97 times the speed of token by token, and at least 0.95
times that of the best window whose queries cost nothing.
"""

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common import load, markdown, new_parser, save
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo import tasks
from wedlm.adapters import prompts
from wedlm.evaluation.turns import median_and_range, take_turns

BASE, ADAPTER = Path("build/smollm2-135m-wedlm"), Path("hub_card/smollm2-135m-adapter")
MODELS = ("demo", "base", "adapter")
TOKEN_BY_TOKEN, DEFAULT = "token by token", "verified"
WINDOWS = {f"window of {size}": size for size in (2, 4, 8, 16)}
WAYS = {
    TOKEN_BY_TOKEN: {"decoding": "autoregressive"},
    DEFAULT: {"decoding": "verified"},
    "MASKs alone": {"decoding": "verified", "prompt_lookup_num_tokens": 0},
    **{name: {"decoding": "verified", "window_size": size, "query_cost": 0} for name, size in WINDOWS.items()},
    "window of 16, MASKs alone": {
        "decoding": "verified",
        "window_size": 16,
        "query_cost": 0,
        "prompt_lookup_num_tokens": 0,
    },
}
GOAL_OF_TOKEN_BY_TOKEN, GOAL_OF_WINDOWS = 0.97, 0.95


def model_named(name: str, given: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if name == "demo":
        return load()
    model, tokenizer = load(given.base)
    tokenizer.padding_side = "left"
    if name == "adapter":
        model.load_adapter(given.adapter)
    return model, tokenizer


def prompts_of(name: str, kind: str, number: int) -> list[str]:
    """Held-out prompts of a kind."""
    if name == "demo":
        return [example.prompt for example in tasks.held_out_examples(kind, number)]
    made = prompts.make_prompts(len(prompts.KINDS) * number, held_out=True)
    return [prompt.text for prompt in made if prompt.kind == kind]


def caller(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[str],
    way: dict,
    new_tokens: int,
) -> Callable[[], dict[str, Any]]:
    """A call that answers the questions in one batch, and counts tokens and forwards."""
    inputs = tokenizer.apply_chat_template(
        [[{"role": "user", "content": question}] for question in questions],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
    )

    def call() -> dict[str, Any]:
        output = model.generate(
            **inputs, **way, max_new_tokens=new_tokens, do_sample=False, return_dict_in_generate=True
        )
        return {
            "texts": output.sequences[:, inputs["input_ids"].shape[1] :].tolist(),
            "tokens": round(float((output.tokens_per_forward * output.forwards).sum())),
            "forwards": int(output.forwards.sum()),
        }

    return call


def measure(
    name: str, kind: str, batch_size: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, repeats: int,
    new_tokens: int, bar: tqdm,
) -> dict[str, Any]:  # fmt: skip
    """All ways in turns, on the prompts of one kind."""
    questions = prompts_of(name, kind, batch_size)
    calls = {way: caller(model, tokenizer, questions, WAYS[way], new_tokens) for way in WAYS}
    seconds, results = {way: [] for way in calls}, {}
    for turn in take_turns(calls, "cpu", repeats, num_warm_up=0, bar=bar):
        seconds[turn.name].append(turn.seconds)
        results[turn.name] = turn.result
    ways = {
        way: {
            "seconds": median_and_range(seconds[way]),
            "tokens": result["tokens"],
            "forwards": result["forwards"],
            "same_texts": sum(map(list.__eq__, result["texts"], results[TOKEN_BY_TOKEN]["texts"])),
        }
        for way, result in results.items()
    }
    return {"model": name, "kind": kind, "batch_size": batch_size, "ways": ways} | shares(seconds)


def shares(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The speed with the default settings, as a share of those that the goals name: of the medians."""
    median = {way: median_and_range(values)["median"] for way, values in seconds.items()}
    best = min(WINDOWS, key=median.__getitem__)
    return {
        "of_token_by_token": median[TOKEN_BY_TOKEN] / median[DEFAULT],
        "best_window": WINDOWS[best],
        "of_best_window": median[best] / median[DEFAULT],
    }


def tokens_per_forward(cells: list[dict], way: str) -> float:
    """Of all cells of one sequence together."""
    alone = [cell["ways"][way] for cell in cells if cell["batch_size"] == 1]
    return sum(each["tokens"] for each in alone) / sum(each["forwards"] for each in alone)


def table(cells: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    lines = [
        [
            cell["model"],
            cell["batch_size"],
            cell["kind"].replace("_", " "),
            f"{cell['ways'][DEFAULT]['tokens'] / cell['ways'][DEFAULT]['forwards']:.2f}",
            f"{cell['of_token_by_token']:.2f}",
            f"{cell['of_best_window']:.2f} ({cell['best_window']})",
        ]
        for cell in cells
    ]
    header = ["model", "batch", "kind", "tokens per forward", "of token by token", "of the best window"]
    return markdown(header, lines, left={"model", "kind"})


def forwards_table(cells: list[dict]) -> str:
    """Tokens per forward of each model over all its kinds, one sequence at a time."""
    names = list(dict.fromkeys(cell["model"] for cell in cells))
    lines = [
        [way, *(f"{tokens_per_forward([cell for cell in cells if cell['model'] == name], way):.2f}" for name in names)]
        for way in WAYS
    ]
    return markdown(["tokens per forward", *names], lines, left={"tokens per forward"})


def same_texts(cells: list[dict]) -> str:
    num_texts = sum(cell["batch_size"] * len(cell["ways"]) for cell in cells)
    num_same = sum(way["same_texts"] for cell in cells for way in cell["ways"].values())
    return f"{num_same} of {num_texts} texts are those of token by token"


def goals(cells: list[dict]) -> str:
    """How the worst cases stand to the goals."""
    lines = []
    for field, goal in (("of_token_by_token", GOAL_OF_TOKEN_BY_TOKEN), ("of_best_window", GOAL_OF_WINDOWS)):
        worst = min(cells, key=lambda cell: cell[field])
        num = sum(cell[field] >= goal for cell in cells)
        where = f"{worst['model']}, {worst['kind']}, batch {worst['batch_size']}"
        lines.append(f"{field}: {num} of {len(cells)} reach {goal}; the least is {worst[field]:.2f} ({where})")
    return "\n".join(lines)


def plot(out: Path, cells: list[dict]) -> None:
    """The speed of every way beside token by token: a column of panels for each model, a row for each batch size."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    models, sizes = (list(dict.fromkeys(cell[field] for cell in cells)) for field in ("model", "batch_size"))
    figure = Figure(figsize=(4.5 * len(models), 3.5 * len(sizes) + 0.5), layout="constrained")
    panels = figure.subplots(len(sizes), len(models), squeeze=False).flat
    for axes, place in zip(panels, product(sizes, models), strict=True):
        here = [cell for cell in cells if (cell["batch_size"], cell["model"]) == place]
        for way, style in zip((DEFAULT, *WINDOWS), ("ko", "b1", "b2", "b3", "b4"), strict=True):
            speeds = [
                cell["ways"][TOKEN_BY_TOKEN]["seconds"]["median"] / cell["ways"][way]["seconds"]["median"]
                for cell in here
            ]
            axes.plot(speeds, range(len(here)), style, label=way, markersize=8 if way != DEFAULT else 5)
        axes.axvline(1, color="grey", linewidth=1)
        axes.set(title=f"{place[1]}, batch of {place[0]}", xlabel="times as fast as token by token")
        axes.set_yticks(range(len(here)), [cell["kind"].replace("_", " ") for cell in here])
        axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(out.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = new_parser(__doc__, "verified_speed")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--kinds", nargs="+", choices=[*prompts.KINDS, *tasks.KINDS], help="all by default")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    kinds = {
        name: [kind for kind in (tasks.KINDS if name == "demo" else prompts.KINDS) if kind in (given.kinds or [kind])]
        for name in given.models
    }
    kinds = {name: of_model for name, of_model in kinds.items() if of_model}
    cells = []
    num_calls = sum(map(len, kinds.values())) * len(given.batch_sizes) * given.repeats * len(WAYS)
    with tqdm(total=num_calls, unit=" calls") as bar, torch.inference_mode():
        for name in kinds:
            model, tokenizer = model_named(name, given)
            for batch_size in given.batch_sizes:
                first = prompts_of(name, kinds[name][0], batch_size)
                for way in WAYS:  # whatever the first calls load
                    caller(model, tokenizer, first, WAYS[way], given.new_tokens)()
                for kind in kinds[name]:
                    more = (given.repeats, given.new_tokens, bar)
                    cells.append(measure(name, kind, batch_size, model, tokenizer, *more))
                    bar.write(table(cells[-1:]).splitlines()[-1])
    print(table(cells))
    print(goals(cells))
    print(same_texts(cells))
    if 1 in given.batch_sizes:
        print(forwards_table(cells))
    save(given.out, cells, "cpu", base=str(given.base), adapter=str(given.adapter))
    plot(given.out, cells)


if __name__ == "__main__":
    main()
