"""What does wedlm.fuse() bring on a CPU? Forwards beside the time of reading the weights.

    python benchmarks/fused.py [--dtypes float32 bfloat16] [--parts rows long prompts beside] [--out FILE]
    python benchmarks/fused.py --shape qwen3-0.6b --dtypes bfloat16 --parts rows --out FILE

- rows: forwards of 1 to 32 tokens behind 100 cached ones, of transformers' own model, of the WeDLM, and of the WeDLM
  fused, also with its linear layers rounded to GGUF's blocks; and the floor, the sum of as many bytes as the weights
  have.
- long: forwards of 1 and 8 tokens behind up to 7,000 cached ones, fused.
- prompts: first forwards of 128 to 2,048 tokens, of transformers' own model and fused.
- beside: forwards of one token while no, one and two other processes compute: medians and 90th percentiles of runs of
  60 forwards.

In the first three, all calls take turns, and a turn has some forwards in a row. `make real-model` makes the models;
with --shape they have random weights of this shape. evidence_real.py measures the speed of generate().
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from common import QWEN3, SHAPES, STOCK, WEDLM, markdown, median_and_range, new_parser, save, with_range
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, logging

from wedlm import WeDLMConfig, WeDLMForCausalLM, fuse
from wedlm.checkpoints.load import load_checkpoint
from wedlm.evaluation.timing import interleaved_seconds
from wedlm.fused.model import product_of
from wedlm.generation.transformers_internals import CACHE

TOKENS, CACHED, IN_A_ROW = (1, 2, 4, 8, 16, 32), 100, 4
LONG, LONG_TOKENS, PROMPTS = (100, 1000, 4000, 7000), (1, 8), (128, 512, 2048)
LLAMA, PLAIN, FUSED, FLOOR = "transformers", "WeDLM", "fused", "floor"
BLOCKS = ("q8_0", "q4_1")  # to which weights are rounded
BUSY, RUNS, IN_A_RUN = (0, 1, 2), 20, 60
PARTS = ("rows", "long", "prompts", "beside")


# --- Models ---


def models_of(given: argparse.Namespace, dtype: str) -> dict[str, PreTrainedModel]:
    """The models whose steps are measured, by name."""
    if given.shape is not None:
        config = WeDLMConfig(**{**QWEN3, **SHAPES[given.shape]}, tie_word_embeddings=True)
        make = partial(WeDLMForCausalLM._from_config, config, dtype=getattr(torch, dtype))
        return {PLAIN: make().eval()} | fused_models(lambda: make().eval())
    stock = AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval()
    read = partial(load_checkpoint, given.model, dtype, "cpu")
    return {LLAMA: stock, PLAIN: read()[0]} | fused_models(lambda: read()[0])


def fused_models(make: Callable[[], PreTrainedModel]) -> dict[str, PreTrainedModel]:
    return {FUSED: fuse(make())} | {f"{FUSED}, {name}": fuse(make(), weights=name) for name in BLOCKS}


def num_bytes(model: PreTrainedModel) -> int:
    """Those of the weights that a forward reads: of an embedding that is not the head, few."""
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    weights = {each.data_ptr(): each.nbytes for each in [*model.parameters(), *model.buffers()]}
    if head.data_ptr() != embedding.data_ptr():
        del weights[embedding.data_ptr()]
    return sum(weights.values())


class Step:
    """Forwards of some tokens behind cached ones, one after another; without cached ones, prompts."""

    def __init__(self, model: PreTrainedModel, num_tokens: int, num_cached: int = CACHED, in_a_row: int = IN_A_ROW):
        self.model, self.num_tokens, self.in_a_row = model, num_tokens, in_a_row
        ids = torch.randint(5, min(500, model.config.vocab_size), (1, num_cached + num_tokens))
        self.ids, self.cache = ids[:, num_cached:], DynamicCache(config=model.config)
        for chunk in ids[:, :num_cached].split(512, dim=1) if num_cached else ():
            model(chunk, logits_to_keep=1, **{CACHE: self.cache})

    def __call__(self) -> None:
        for _ in range(self.in_a_row):
            if self.cache.get_seq_length() == 0:
                self.model(self.ids, logits_to_keep=1, use_cache=False)
            else:
                self.model(self.ids, **{CACHE: self.cache})
                self.cache.crop(-self.num_tokens)


def milliseconds(calls: dict, repeats: int) -> dict:
    """Those of a forward, by the keys of `calls`."""
    seconds = interleaved_seconds(calls, "cpu", repeats, num_warm_up=2)
    in_a_row = {key: getattr(call, "in_a_row", IN_A_ROW) for key, call in calls.items()}
    return {key: median_and_range([1e3 * one / in_a_row[key] for one in values]) for key, values in seconds.items()}


def nested(values: dict) -> dict:
    """{(name, number): value} as {name: {"number": value}}."""
    results: dict = {}
    for (name, number), value in values.items():
        results.setdefault(name, {})[str(number)] = value
    return results


# --- Parts ---


def rows(models: dict[str, PreTrainedModel], repeats: int) -> dict:
    """By model and number of tokens: milliseconds, and multiples of one token's; and those of reading the weights."""
    calls: dict = {(name, tokens): Step(model, tokens) for name, model in models.items() for tokens in TOKENS}
    floors = {name: f"{FLOOR}{name.removeprefix(FUSED) if name.startswith(FUSED) else ''}" for name in models}
    for name, floor in floors.items():
        read = torch.ones(num_bytes(models[name]) // 4)
        calls[floor, 1] = lambda read=read: [read.sum() for _ in range(IN_A_ROW)]
    results = {name: {"milliseconds": cells} for name, cells in nested(milliseconds(calls, repeats)).items()}
    for name, of_model in results.items():
        if not name.startswith(FLOOR):
            first = of_model["milliseconds"]["1"]["median"]
            of_model["times_first"] = {n: one["median"] / first for n, one in of_model["milliseconds"].items()}
            of_model["times_floor"] = first / results[floors[name]]["milliseconds"]["1"]["median"]
    return results


def long(models: dict[str, PreTrainedModel], repeats: int) -> dict:
    """By the number of tokens and of cached ones, fused."""
    calls = {(n, cached): Step(models[FUSED], n, cached) for n in LONG_TOKENS for cached in LONG}
    return {str(n): cells for n, cells in nested(milliseconds(calls, repeats)).items()}


def prompts(models: dict[str, PreTrainedModel], repeats: int) -> dict:
    names = [name for name in (LLAMA, PLAIN, FUSED) if name in models]
    calls = {(name, n): Step(models[name], n, 0, 1) for name in names for n in PROMPTS}
    return nested(milliseconds(calls, max(3, repeats // 3)))


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def beside(models: dict[str, PreTrainedModel], runs: int) -> dict:
    """By model and number of other processes: medians and 90th percentiles of runs, in milliseconds."""
    steps = {name: Step(models[name], 1, in_a_row=1) for name in (LLAMA, PLAIN, FUSED) if name in models}
    results: dict = {name: {} for name in steps}
    for number in BUSY:
        with busy(number):
            for name, step in steps.items():
                found = [run_of(step) for _ in range(runs if name == FUSED else max(1, runs // 5))]
                medians, tails = zip(*found, strict=True)
                results[name][str(number)] = {
                    "median": median_and_range(list(medians)), "90th percentile": median_and_range(list(tails)),
                }  # fmt: skip
    return results


def run_of(step: Callable[[], None]) -> tuple[float, float]:
    """The median and the 90th percentile of a run of forwards, in milliseconds."""
    times = []
    for _ in range(IN_A_RUN):
        start = perf_counter()
        step()
        times.append(1e3 * (perf_counter() - start))
    return statistics.median(times), sorted(times)[IN_A_RUN * 9 // 10]


# --- Report ---


def table(results: dict, first: str = "milliseconds by tokens") -> str:
    """One line for each dtype and model."""
    lines, columns = [], list(dict.fromkeys(n for of in results.values() for cells in of.values() for n in cells))
    for dtype, of_dtype in results.items():
        for name, cells in of_dtype.items():
            lines.append([dtype, name, *(with_range(cells[n], ".1f") if n in cells else "" for n in columns)])
    return markdown(["dtype", first, *columns], lines, left={"dtype", first})


def tables(results: dict) -> dict[str, str]:
    """The table of each part."""
    found = {}
    if "rows" in results:
        cells = {dtype: {n: of["milliseconds"] for n, of in part.items()} for dtype, part in results["rows"].items()}
        found["rows"] = table(cells)
    for part in ("long", "prompts"):
        if part in results:
            found[part] = table(
                results[part], "milliseconds by cached tokens" if part == "long" else "milliseconds by tokens"
            )
    if "beside" in results:
        cells = {
            dtype: {f"{name}, {kind}": {n: one[kind] for n, one in numbers.items()} for name, numbers in of.items()
                    for kind in ("median", "90th percentile")}
            for dtype, of in results["beside"].items()
        }  # fmt: skip
        found["beside"] = table(cells, "milliseconds next to busy processes")
    return found


@torch.no_grad()
def main() -> None:
    parser = new_parser(__doc__, "fused")
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--model", type=Path, default=WEDLM)
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=21)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    results: dict = {}
    for dtype in given.dtypes:
        models = models_of(given, dtype)
        for part in given.parts:
            number = min(RUNS, given.repeats) if part == "beside" else given.repeats
            results.setdefault(part, {})[dtype] = globals()[part](models, number)
            print(tables({part: {dtype: results[part][dtype]}})[part], flush=True)
        results["product"] = product_of(models[FUSED])
    save(given.out, results, "cpu", shape=given.shape, repeats=given.repeats)


if __name__ == "__main__":
    main()
