"""How close does decoding on a GPU come to the limit of the hardware? One table.

    python benchmarks/gpu.py [--shape qwen3-8b] [--batch-sizes 1 16] [--length 1024] [--window-size 16]
                             [--repeats 5] [--out benchmarks/results/gpu.json]

It needs torch, transformers and this repository but no weights, which are random in the given shape. All decodings
take turns in one run. Milliseconds per step come from whole calls of generate(): a long and a short call differ in
their seconds and in their forwards, and the quotient of the differences leaves out what comes before the second step.
The memory floor is the bytes of the weights and of the cache's text over the bandwidth that a maximum over a large
tensor reaches in the same run.

Launches per step, of kernels and of graphs, come from the same two calls under torch's profiler.

- stock: transformers' own class for Qwen3, the same weights, cache_implementation="static" (compiled on a GPU)
- autoregressive: this package's class in decoding="autoregressive", likewise
- one slot, streaming, verified: cache_implementation="static" (compiled on a GPU), one slot filled per forward
- streaming, ordinary steps: the same without a static cache

Tokens per second are those of a text of which each forward fills as much as on the demo checkpoint's word problems
(hub_card/wedlm-demo/report.json). Beside them stand the tokens per second that the memory floor allows decoding token
by token at the same batch size.

The goals, at batch size 1: a verified step takes at most 1.25 times the memory floor, and verified decoding writes 2.5
times the tokens per second of the stock class.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import (
    add_model_arguments,
    bytes_per_second,
    markdown,
    model_of,
    new_parser,
    random_tokens,
    save,
    with_range,
)
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.timing import interleaved, median_and_range

STATIC = {"cache_implementation": "static"}
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"}
ONE_BY_ONE = {"entropy_threshold": None}  # entropies of random weights mean nothing


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


def decodings_of(model: PreTrainedModel, window_size: int) -> dict[str, tuple[PreTrainedModel, dict]]:
    """The model and the arguments of `generate()` by name."""
    window = {"window_size": window_size, **ONE_BY_ONE}
    return {
        "stock": (stock_model(model), STATIC),
        "autoregressive": (model, {"decoding": "autoregressive", **STATIC}),
        "one slot": (model, {"decoding": "streaming", **ONE_BY_ONE, "window_size": 1, **STATIC}),
        "streaming": (model, {"decoding": "streaming", **window, **STATIC}),
        "verified": (model, {"decoding": "verified", "window_size": window_size, **STATIC}),
        "streaming, ordinary steps": (model, {"decoding": "streaming", **window}),
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


def per_step(given: argparse.Namespace, model: PreTrainedModel, batch_size: int) -> dict[str, dict[str, Any]]:
    """The milliseconds of a step in each round, and its launches on a GPU, by decoding."""
    torch.manual_seed(0)
    tokens = random_tokens(model, batch_size, given.length)
    few, many = given.new_tokens // 4, given.new_tokens
    decodings = decodings_of(model, given.window_size)
    calls = {
        (name, number): partial(generate, what, settings, tokens, number)
        for name, (what, settings) in decodings.items()
        for number in (few, many)
    }
    steps = {name: {"milliseconds": [], "launches": None} for name in decodings}
    short = (0.0, 0)
    for turn in interleaved(calls, model.device, given.repeats, num_warm_up=2):  # the warm-up compiles, too
        name, number = turn.name
        forwards = forwards_of(turn.result, number)
        if number == few:
            short = (turn.seconds, forwards)
        else:
            steps[name]["milliseconds"].append(1e3 * (turn.seconds - short[0]) / (forwards - short[1]))
    if model.device.type == "cuda":
        for name in decodings:
            counted = [launches(calls[name, number], number) for number in (few, many)]
            (of_few, few_forwards), (of_many, many_forwards) = counted
            steps[name]["launches"] = (of_many - of_few) / (many_forwards - few_forwards)
    return steps


def launches(call: Callable[[], GenerateDecoderOnlyOutput], new_tokens: int) -> tuple[int, int]:
    """The launches of a call, and its forwards."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        output = call()
        torch.cuda.synchronize()
    number = sum(event.count for event in profiled.key_averages() if event.key in LAUNCHES)
    return number, forwards_of(output, new_tokens)


@torch.no_grad()
def measure(given: argparse.Namespace, model: PreTrainedModel, batch_size: int, bandwidth: float) -> list[dict]:
    """The numbers of each decoding at one batch size."""
    steps = per_step(given, model, batch_size)
    milliseconds = {name: median_and_range(step["milliseconds"]) for name, step in steps.items()}
    floor = 1e3 * bytes_read(model, batch_size, given.length) / bandwidth
    on_word_problems = json.loads((DEMO_FOLDER / "report.json").read_text())["results"]["word_problems"]
    measured = []
    for name, taken in milliseconds.items():
        filled = on_word_problems.get(name.partition(",")[0], {"tokens_per_forward": 1.0})["tokens_per_forward"]
        measured.append(
            {
                "batch_size": batch_size,
                "side": name,
                "milliseconds_per_step": taken,
                "memory_floor_milliseconds": floor,
                "launches_per_step": steps[name]["launches"],
                "times_floor": taken["median"] / floor,
                "times_one_slot": taken["median"] / milliseconds["one slot"]["median"],
                "tokens_per_forward": filled,
                "tokens_per_second": 1e3 * batch_size * filled / taken["median"],
                "tokens_per_second_at_floor": 1e3 * batch_size / floor,
            }
        )
    return measured


def table(measured: list[dict]) -> str:
    header = ["batch", "decoding", "ms per step (min - max)", "launches", "times the floor", "times one slot"]
    lines = [
        [
            numbers["batch_size"],
            numbers["side"],
            with_range(numbers["milliseconds_per_step"], ".2f"),
            "" if numbers["launches_per_step"] is None else f"{numbers['launches_per_step']:.0f}",
            f"{numbers['times_floor']:.2f}",
            f"{numbers['times_one_slot']:.2f}",
            f"{numbers['tokens_per_second']:.0f}",
            f"{numbers['tokens_per_second_at_floor']:.0f}",
        ]
        for numbers in measured
    ]
    return markdown([*header, "tokens/s", "floor's, AR"], lines, left={"decoding"})


def main() -> None:
    parser = new_parser(__doc__, "gpu")
    add_model_arguments(parser)
    parser.set_defaults(shape="qwen3-8b")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--window-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    model = model_of(given)
    bandwidth = bytes_per_second(model.device, 20)
    about = {"shape": given.shape, "dtype": str(model.dtype), "length": given.length, "window_size": given.window_size}
    measured = []
    for batch_size in given.batch_sizes:
        measured += measure(given, model, batch_size, bandwidth)
        results = {"bytes_per_second": bandwidth, "rows": measured}
        save(given.out, results, model.device, **about)  # each time, because a large batch may take minutes
    print(f"{given.shape}, {model.dtype}, {given.length} tokens of context, memory {bandwidth / 1e9:.0f} GB/s\n")
    print(table(measured))


if __name__ == "__main__":
    main()
