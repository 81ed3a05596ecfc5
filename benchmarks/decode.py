"""Tokens per second of every decoding, the time to the first token, and the time between commits.

    python benchmarks/decode.py [--shape qwen3-8b] [--batch-sizes 1 4 16] [--prompt-lengths 128 1024]
                                [--new-tokens 128] [--window-size 8] [--compile] [--repeats 5]
                                [--out benchmarks/results/decode.json]

Prompts are conversations about the demo's tasks. A held-out question comes last, behind as many answered ones as fit
into the length. (The demo was trained on 192 tokens at most and has little to say in longer ones.) With --shape the
prompts are random tokens and every decoding writes all --new-tokens; with random weights the number of tokens per
forward means nothing.

All decodings take turns in each cell. "autoregressive" is transformers' own with a DynamicCache, and "static" is the
same with cache_implementation="static", which transformers compiles on a GPU. There, and with --compile, streaming and
verified decoding are also measured compiled. "one slot" is streaming decoding with a window of one slot: this
package's own step with a single query. A small batch size has several batches, so that each kind of task takes part.
Latencies are measured at batch size 1, in separate runs with a streamer.

A forward over a window takes longer than one over a single query, so a decoding gains less in tokens per second than
in tokens per forward. "kept" is the ratio of tokens per second to autoregressive decoding over the ratio of tokens per
forward. If a forward over a window were as fast as one over a single query, it would be as large as for "one slot".
The goal beside it is 0.6 at batch size 1. At larger batch sizes it is 0.9 times the milliseconds of a "one slot"
forward over those of a forward with a window.
"""

import statistics
import time
from functools import partial
from typing import NamedTuple

import torch
from common import Panel, add_model_arguments, markdown, model_of, new_parser, save, tokenizer_of, with_range
from huggingface_hub.utils import tqdm
from prompts import prompts
from transformers import CompileConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from examples.demo.tasks import KINDS
from wedlm.evaluation.turns import Turn, median_and_range, take_turns

STATIC = {"cache_implementation": "static"}
DECODINGS = {
    "autoregressive": {"decoding": "autoregressive"},
    "static": {"decoding": "autoregressive", **STATIC},
    "one slot": {"decoding": "streaming", "window_size": 1},
    "streaming": {"decoding": "streaming"},
    "verified": {"decoding": "verified"},
    "blockwise": {"decoding": "blockwise"},
}
COMPILED = {
    f"{name}, compiled": {**DECODINGS[name], **STATIC, "compile_config": CompileConfig()}
    for name in ("streaming", "verified")
}
BASELINE = "autoregressive"


class Clock:
    """A streamer for one text that notes when tokens are committed."""

    def __init__(self):
        self.start, self.times, self.has_prompt = time.perf_counter(), [], False

    def put(self, tokens: torch.Tensor) -> None:
        if self.has_prompt:
            self.times.append(time.perf_counter() - self.start)
        self.has_prompt = True

    def end(self) -> None:
        pass


class Run(NamedTuple):
    seconds: float
    tokens: int
    forwards: int


def generate(model: PreTrainedModel, batches: list[dict], settings: dict) -> list[GenerateDecoderOnlyOutput]:
    return [model.generate(**inputs, **settings) for inputs in batches]


def run_of(turn: Turn) -> Run:
    tokens = sum((output.tokens_per_forward * output.forwards).sum().round().item() for output in turn.result)
    return Run(turn.seconds, tokens, sum(output.forwards.max().item() for output in turn.result))


def speed(runs: list[Run], batch_size: int) -> dict:
    first = runs[0]
    return {
        "tokens_per_second": median_and_range([run.tokens / run.seconds for run in runs]),
        "tokens_per_forward": first.tokens / batch_size / first.forwards,
        "milliseconds_per_forward": 1e3 * statistics.median(run.seconds for run in runs) / first.forwards,
    }


def latencies(model: PreTrainedModel, batches: list[dict], settings: dict, repeats: int) -> dict[str, float]:
    first, between = [], []
    for inputs in batches * repeats:
        clock = Clock()
        model.generate(**inputs, **settings, streamer=clock)
        first.append(clock.times[0])
        between += [later - earlier for earlier, later in zip(clock.times, clock.times[1:], strict=False)]
    return {
        "milliseconds_to_first_token": 1e3 * statistics.median(first),
        "milliseconds_between_commits": 1e3 * statistics.median(between or first),
    }


def measure(
    model: PreTrainedModel, batches: list[dict], decodings: dict[str, dict], settings: dict, repeats: int, bar: tqdm
) -> dict[str, dict]:
    """The numbers of one cell by decoding; `settings` are the arguments of `generate()` that all decodings share."""
    settings = {name: {**settings, **decoding} for name, decoding in decodings.items()}
    runs = {name: [] for name in decodings}
    calls = {name: partial(generate, model, batches, settings[name]) for name in decodings}
    for turn in take_turns(calls, model.device, repeats, bar=bar):
        runs[turn.name].append(run_of(turn))
    batch_size = len(batches[0]["input_ids"])
    measured = {name: speed(runs[name], batch_size) for name in decodings}
    if batch_size == 1:
        for name in decodings:
            measured[name] |= latencies(model, batches, settings[name], repeats)
    base = measured[BASELINE]
    for numbers in measured.values():
        times = numbers["tokens_per_second"]["median"] / base["tokens_per_second"]["median"]
        numbers["times_autoregressive"] = times
        numbers["share_kept"] = times * base["tokens_per_forward"] / numbers["tokens_per_forward"]
    return measured


def goal(cell: dict, name: str) -> float:
    if cell["batch_size"] == 1:
        return 0.6
    one_slot, window = (cell["sides"][side]["milliseconds_per_forward"] for side in ("one slot", name))
    return 0.9 * one_slot / window


def table(cells: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    header = ["batch", "prompt", "decoding", "tokens/s (min - max)", "times AR", "tokens/forward", "kept (goal)"]
    lines = []
    for cell in cells:
        for name, numbers in cell["sides"].items():
            has_window = name.partition(",")[0] in ("streaming", "verified", "blockwise")
            first = numbers.get("milliseconds_to_first_token")
            lines.append(
                [
                    cell["batch_size"],
                    cell["prompt_length"],
                    name,
                    with_range(numbers["tokens_per_second"], ".0f"),
                    f"{numbers['times_autoregressive']:.2f}",
                    f"{numbers['tokens_per_forward']:.2f}",
                    f"{numbers['share_kept']:.2f}" + (f" ({goal(cell, name):.2f})" if has_window else ""),
                    f"{numbers['milliseconds_per_forward']:.2f}",
                    "" if first is None else f"{first:.1f}",
                ]
            )
    return markdown([*header, "ms/forward", "first"], lines, left={"decoding"})


def panels(cells: list[dict]) -> list[Panel]:
    """A panel for each prompt length."""
    shown = []
    for length in sorted({cell["prompt_length"] for cell in cells}):
        lines = {
            name: [
                (cell["batch_size"], cell["sides"][name]["tokens_per_second"]["median"])
                for cell in cells
                if cell["prompt_length"] == length
            ]
            for name in cells[0]["sides"]
        }
        shown.append(Panel(f"prompts of {length} tokens", "batch size", "tokens per second", lines))
    return shown


def main() -> None:
    parser = new_parser(__doc__, "decode")
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--window-size", type=int, help="the checkpoint's by default")
    parser.add_argument("--compile", action="store_true", help="on a CPU as well, which takes a minute or two")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    model, tokenizer = model_of(given), tokenizer_of(given)
    decodings = {**DECODINGS, **(COMPILED if given.compile or torch.cuda.is_available() else {})}
    settings = {"max_new_tokens": given.new_tokens, "do_sample": False, "return_dict_in_generate": True}
    if given.window_size is not None:
        settings["window_size"] = given.window_size
    cells = []
    shapes = [(batch_size, length) for batch_size in given.batch_sizes for length in given.prompt_lengths]
    with tqdm(total=len(shapes) * len(decodings) * (given.repeats + 1), unit=" runs") as bar:
        for batch_size, length in shapes:
            torch.manual_seed(0)
            num_batches = max(1, len(KINDS) // batch_size)
            batches = [prompts(model, tokenizer, batch_size, length, number) for number in range(num_batches)]
            measured = measure(model, batches, decodings, settings, given.repeats, bar)
            cells.append({"batch_size": batch_size, "prompt_length": length, "sides": measured})
    print(table(cells))
    about = {"shape": given.shape, "dtype": str(model.dtype), "repeats": given.repeats}
    save(given.out, cells, model.device, panels(cells), window_size=given.window_size, **about)


if __name__ == "__main__":
    main()
