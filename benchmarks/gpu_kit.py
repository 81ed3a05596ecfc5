"""What does a GPU give? Slices of minutes, each of which writes its record after every number.

    python benchmarks/gpu_kit.py steps [--out FOLDER] [--minutes 4] [--shapes qwen3-8b qwen3-0.6b]
                                       [--batch-sizes 1 8 32]

A slice that was stopped, or whose minutes are over, goes on where its record ends. It needs torch, transformers and
this repository.

steps: milliseconds of a step of random weights in bfloat16, behind a text of --length tokens. They come from whole
calls of generate(): a long and a short call differ in their seconds and in their forwards, and the quotient of the
differences leaves out what comes before the second step. The memory floor is the bytes of the weights and of the
cache's text over the bandwidth that a maximum over a large tensor reaches in the same run. The first call of a way
warms up, and captures its graphs if it has any; the record has its seconds beyond those of later calls. Launches, of
kernels and of graphs, and the kernels of a step come from two shorter calls under torch's profiler, each made once
before. Nothing is looked up in the text, and drafts of random weights are not accepted, so a step writes one token.

- stock: transformers' own class for Qwen3 with the same weights, its cache dynamic or static, and not compiled
- verified: this package's class with that many queries, ordinary steps
- captured: the same with cache_implementation="static"; one query is a window of one slot, which has no drafts
- fused, captured: the same with wedlm.fuse()
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import (
    ADAPTER,
    DEVICE,
    RESULTS,
    SHAPES,
    STOCK,
    WEDLM,
    bytes_per_second,
    markdown,
    median_and_range,
    random_model,
    random_tokens,
    save,
    with_range,
)
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, logging
from transformers.generation import GenerateDecoderOnlyOutput

import wedlm
from wedlm.evaluation.timing import interleaved, timed
from wedlm.generation.static_steps import KEPT

STATIC = {"cache_implementation": "static"}
NUM_QUERIES = (1, 2, 4, 8, 16, 32)
SOME_QUERIES = 8  # of ordinary steps, and of fused ones
CAPTURED = f"captured, {SOME_QUERIES} queries"
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"}
Ways = dict[str, tuple[PreTrainedModel, dict[str, Any]]]  # a model and arguments of generate() by name


class Record:
    """The results of a slice by name in FOLDER/SLICE.json, written after each of them, and the end of its minutes."""

    def __init__(self, given: argparse.Namespace, **about: Any):
        self.file, self.about = given.out / f"{given.slice}.json", about
        self.end = time.perf_counter() + 60 * given.minutes
        self.results: dict[str, Any] = {}
        if self.file.exists():
            earlier = json.loads(self.file.read_text(encoding="utf-8"))
            if {name: earlier.get(name) for name in about} == json.loads(json.dumps(about)):
                self.results = earlier["results"]

    def lacks(self, name: str) -> bool:
        """Whether to make a result now: it is not there, and there is time."""
        return name not in self.results and self.seconds_left() > 0

    def seconds_left(self) -> float:
        return self.end - time.perf_counter()

    def add(self, name: str, result: Any) -> None:
        self.results[name] = result
        save(self.file, self.results, DEVICE, **self.about)


# --- steps ---


def bytes_read(model: PreTrainedModel, batch_size: int, length: int) -> int:
    """The bytes of the weights and of the cache that a step with one query must read."""
    config = model.config
    embeddings = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    weights = sum(weight.numel() for weight in model.parameters()) - embeddings
    entries = batch_size * (length + 1) * config.num_hidden_layers
    cache = 2 * entries * config.num_key_value_heads * config.head_dim
    return next(model.parameters()).element_size() * (weights + cache)


def stock_model(model: PreTrainedModel) -> Qwen3ForCausalLM:
    """transformers' own class around the same weights, without a copy of them."""
    fields = model.config.to_dict()
    config = Qwen3Config(**{name: fields[name] for name in Qwen3Config().to_dict() if name in fields})
    with torch.device("meta"):
        stock = Qwen3ForCausalLM._from_config(config, dtype=model.dtype)
    stock.load_state_dict(model.state_dict(), assign=True)
    stock.model.rotary_emb = model.model.rotary_emb
    return stock.eval()


def fused_model(model: PreTrainedModel) -> PreTrainedModel:
    """A fused model of the same shape."""
    with torch.device("meta"):
        other = type(model)._from_config(model.config, dtype=model.dtype)
    other.load_state_dict(model.state_dict(), assign=True)
    other.model.rotary_emb = model.model.rotary_emb
    return wedlm.fuse(other.eval())


def ways_of(model: PreTrainedModel) -> Ways:
    """The ways in the order in which they are measured."""
    stock, fused = stock_model(model), fused_model(model)

    def verified(queries: int) -> dict[str, Any]:
        if queries == 2:  # verified, a window of one slot has one query, and one of two slots four
            return {"decoding": "streaming", "window_size": 1, "entropy_threshold": None}
        return {"decoding": "verified", "window_size": max(1, queries // 2), "prompt_lookup_num_tokens": 0}

    captured = {f"captured, {queries} queries": (model, verified(queries) | STATIC) for queries in NUM_QUERIES}
    return {
        "stock": (stock, {}),
        CAPTURED: captured.pop(CAPTURED),
        f"verified, {SOME_QUERIES} queries": (model, verified(SOME_QUERIES)),
        **captured,
        "stock, static cache": (stock, STATIC | {"disable_compile": True}),
        f"fused, {CAPTURED}": (fused, verified(SOME_QUERIES) | STATIC),
        "fused, captured, 1 queries": (fused, verified(1) | STATIC),
    }


def generate(
    model: PreTrainedModel, settings: dict, tokens: torch.Tensor, new_tokens: int
) -> GenerateDecoderOnlyOutput:
    return model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        pad_token_id=0,
        **settings,
    )


def forwards_of(output: GenerateDecoderOnlyOutput, new_tokens: int) -> int:
    return output.forwards.max().item() if "forwards" in output else new_tokens  # of transformers' own class


def per_step(calls: dict[int, Callable], repeats: int) -> dict[str, Any]:
    """The milliseconds of a step, from calls by the number of their new tokens, a smaller and a larger one."""
    few, many = calls
    _, first = timed(calls[few], DEVICE)
    milliseconds, seconds, short = [], [], (0.0, 0)
    for turn in interleaved(calls, DEVICE, repeats):
        forwards = forwards_of(turn.result, turn.name)
        if turn.name == few:
            short = (turn.seconds, forwards)
            seconds.append(turn.seconds)
        else:
            milliseconds.append(1e3 * (turn.seconds - short[0]) / (forwards - short[1]))
    return {"milliseconds": median_and_range(milliseconds), "first_call_more_seconds": first - min(seconds)}


def launches_per_step(calls: dict[int, Callable]) -> dict[str, float]:
    """The launches of a step by the host, of kernels and of graphs, and the kernels that run on the GPU."""
    counts = []
    for call in calls.values():
        call()  # which captures: the ways of a model share its kept steps, so those of another way are there
    for number, call in calls.items():
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            output = call()
            torch.cuda.synchronize()
        events = profiled.key_averages()
        launches = sum(event.count for event in events if event.key in LAUNCHES)
        kernels = sum(event.count for event in events if event.device_type == DeviceType.CUDA)
        counts.append((launches, kernels, forwards_of(output, number)))
    launches, kernels, forwards = (larger - smaller for smaller, larger in zip(*counts, strict=True))
    return {"launches": launches / forwards, "kernels": kernels / forwards}


@torch.no_grad()
def steps(given: argparse.Namespace) -> None:
    about = {name: getattr(given, name) for name in ("shapes", "batch_sizes", "length", "new_tokens", "repeats")}
    record, models = Record(given, **about), {}
    if record.lacks("bytes_per_second"):
        record.add("bytes_per_second", bytes_per_second(DEVICE, 20))
    for batch_size in given.batch_sizes:
        for shape in given.shapes:
            if shape not in models:
                (model, seconds) = timed(partial(random_model, shape, torch.bfloat16), DEVICE)
                models[shape] = model, ways_of(model)
                measure_first_token(record, f"{shape}, first token", *models[shape], given.length, seconds)
            measure_ways(record, given, f"{shape}, batch {batch_size}", *models[shape], batch_size)
    print(table(record.results))


def measure_first_token(
    record: Record, name: str, model: PreTrainedModel, ways: Ways, length: int, seconds_of_model: float
) -> None:
    if not record.lacks(name):
        return
    tokens, (_, settings) = random_tokens(model, 1, length), ways[CAPTURED]
    seconds = [timed(partial(generate, model, settings, tokens, 1), DEVICE)[1] for _ in range(3)]
    record.add(name, {"seconds_of_model": seconds_of_model, "first": seconds[0], "later": min(seconds)})


def measure_ways(
    record: Record, given: argparse.Namespace, cell: str, model: PreTrainedModel, ways: Ways, batch_size: int
) -> None:
    """Measures each way at a batch size; launches come last, and for one row only."""
    torch.manual_seed(0)
    tokens = random_tokens(model, batch_size, given.length)
    numbers = (given.new_tokens // 4, given.new_tokens)
    for name, (which, settings) in ways.items():
        if record.lacks(f"{cell}, {name}"):
            calls = {number: partial(generate, which, settings, tokens, number) for number in numbers}
            measured = per_step(calls, given.repeats)
            floor = 1e3 * bytes_read(model, batch_size, given.length) / record.results["bytes_per_second"]
            measured |= {"floor": floor, "times_floor": measured["milliseconds"]["median"] / floor}
            if "cache_implementation" in settings and which in KEPT:
                measured["graphs"] = len(KEPT[which].graphs)
            record.add(f"{cell}, {name}", measured)
    for name, (which, settings) in ways.items():
        if batch_size == 1 and DEVICE == "cuda" and record.lacks(f"{cell}, {name}, launches"):
            calls = {number: partial(generate, which, settings, tokens, number) for number in (4, 12)}
            record.add(f"{cell}, {name}, launches", launches_per_step(calls))
    for which, _ in ways.values():
        KEPT.pop(which, None)


def told(counts: dict[str, float], name: str) -> str:
    return f"{counts[name]:,.0f}" if name in counts else ""


def table(results: dict[str, Any]) -> str:
    lines = [
        [
            name,
            with_range(numbers["milliseconds"], ".2f"),
            f"{numbers['times_floor']:.2f}",
            f"{numbers['first_call_more_seconds']:.2f}",
            *(told(results.get(f"{name}, launches", {}), count) for count in ("launches", "kernels")),
        ]
        for name, numbers in results.items()
        if isinstance(numbers, dict) and "floor" in numbers
    ]
    header = ["way", "ms per step (min - max)", "times the floor", "s more at first", "launches", "kernels"]
    return markdown(header, lines, left={"way"})


# --- tasks ---


def tasks(given: argparse.Namespace) -> None:
    import task_training

    names = ("samples", "row_tokens", "rows_per_step", "rank", "learning_rate", "questions")
    record = Record(given, **{name: getattr(given, name) for name in names}, minutes=given.minutes)
    if "after, verified" not in record.results:
        task_training.tasks(given, record)


# --- evidence and checks: scripts of their own ---


def run_script(name: str, given: argparse.Namespace, *words: object) -> None:
    """Runs another script of this folder, which writes its record into the same folder."""
    sys.argv = [
        str(Path(__file__).with_name(f"{name}.py")),
        "--out",
        str(given.out / f"{given.slice}.json"),
        *map(str, words),
    ]
    importlib.import_module(name).main()


def evidence(given: argparse.Namespace) -> None:
    """The table of evidence_real.py, whose answers are kept beside it."""
    where = ["--stock", given.stock, "--wedlm", given.model, "--adapter", given.adapter, "--device", DEVICE]
    dtype = ["--dtype", "bfloat16" if DEVICE == "cuda" else "float32"]
    few = ["--new-tokens", given.answer_tokens, "--rounds", 1, "--work", given.out / "evidence"]
    run_script("evidence_real", given, *where, *dtype, *few)


def checks(given: argparse.Namespace) -> None:
    run_script("gpu_checks", given, "--only", given.only)


# --- Everything ---

SLICES = {"steps": steps, "evidence": evidence, "tasks": tasks, "checks": checks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slice", choices=SLICES)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="the folder of the records")
    parser.add_argument("--minutes", type=float, default=8, help="after which nothing more is measured")
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=["qwen3-8b", "qwen3-0.6b"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, default=1024, help="of the text before a step")
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path, default=WEDLM, help="the real model as a WeDLM")
    parser.add_argument("--stock", type=Path, default=STOCK, help="the real model")
    parser.add_argument("--adapter", type=Path, default=ADAPTER, help="its draft adapter")
    parser.add_argument("--answer-tokens", type=int, default=64, help="the most of an answer in `evidence`")
    parser.add_argument("--only", default="", help="make only the checks whose name holds this")
    parser.add_argument("--samples", type=int, default=300_000, help="the most examples of the training")
    parser.add_argument("--steps", type=int, default=100_000, help="the most steps of the training")
    parser.add_argument("--row-tokens", type=int, default=4096)
    parser.add_argument("--rows-per-step", type=int, default=4)
    parser.add_argument("--rank", type=int, default=64, help="of the LoRA")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--questions", type=int, default=100, help="held-out ones")
    parser.add_argument("--evaluation-seconds", type=float, default=45, help="for the answers of the trained model")
    given = parser.parse_args()
    logging.set_verbosity_error()
    SLICES[given.slice](given)


if __name__ == "__main__":
    main()
