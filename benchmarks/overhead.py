"""What a step costs beside the model: the share of time outside its forward, operations, and looks of the host.

    python benchmarks/overhead.py [--shape qwen3-8b] [--batch-sizes 1 8] [--new-tokens 96] [--repeats 7]
                                  [--out benchmarks/results/overhead.json]

Every decoding writes the same held-out answers (of random weights: as many tokens); they take turns. The share is that
of the whole call, what generate() does before and after the loop included; transformers' own decoding has one too.
Operations and looks are counted in a run of their own: what one more forward adds. On a CPU an operation is one that
torch dispatches and that makes a tensor of its own or changes one; on a GPU it is a kernel launched, and looks are
synchronisations.
"""

import argparse
import functools
from collections import Counter
from pathlib import Path

import torch
from common import Panel, add_model_arguments, model_of, now, plot, spread
from decode import prompts
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, PreTrainedModel

from wedlm.evaluation.provenance import write_report
from wedlm.generation import decoding_run

DECODINGS = ("autoregressive", "streaming", "verified", "blockwise")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")


class Forward:
    """The model's forward, with the seconds spent in it; `is_running` while it runs."""

    def __init__(self, model: PreTrainedModel):
        self.seconds, self.is_running = 0.0, False
        original = model.forward

        @functools.wraps(original)  # generate() reads the signature of forward
        def timed(*args, **kwargs):
            start, self.is_running = now(model.device), True
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += now(model.device) - start
                self.is_running = False

        model.forward = timed


class Counts(TorchDispatchMode):
    """Operations outside and inside the forward, and how often the host reads a value of the device."""

    def __init__(self, forward: Forward):
        super().__init__()
        self.forward, self.numbers = forward, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.numbers["looks"] += 1
        elif not func.is_view and func.overloadpacket is not torch.ops.aten.detach:
            self.numbers["inside" if self.forward.is_running else "outside"] += 1
        return func(*args, **(kwargs or {}))


def generate(model: PreTrainedModel, inputs: dict, decoding: str, new_tokens: int):
    return model.generate(
        **inputs, decoding=decoding, max_new_tokens=new_tokens, do_sample=False, return_dict_in_generate=True
    )


def counted(model: PreTrainedModel, forward: Forward, inputs: dict, decoding: str, new_tokens: int) -> Counter:
    """Of one call, with its forwards."""
    read, status_looks = decoding_run.read_status, Counter()

    def counting(*arguments):
        status_looks["looks"] += 1  # tolist() of a CPU's tensor is no operation
        return read(*arguments)

    decoding_run.read_status = counting
    try:
        if model.device.type == "cuda":
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                output = generate(model, inputs, decoding, new_tokens)
            names = Counter(event.name for event in profiled.events())
            numbers = Counter(launches=sum(n for name, n in names.items() if name.startswith(LAUNCHES)))
            numbers["looks"] = sum(n for name, n in names.items() if "Synchronize" in name)
        else:
            with Counts(forward) as mode:
                output = generate(model, inputs, decoding, new_tokens)
            numbers = mode.numbers + status_looks
    finally:
        decoding_run.read_status = read
    return numbers + Counter(forwards=output.forwards.max().item())


def measure(model: PreTrainedModel, forward: Forward, inputs: dict, new_tokens: int, repeats: int) -> dict[str, dict]:
    shares, steps = ({decoding: [] for decoding in DECODINGS} for _ in range(2))
    for i in range(repeats + 1):
        for decoding in DECODINGS:
            forward.seconds, start = 0.0, now(model.device)
            output = generate(model, inputs, decoding, new_tokens)
            seconds = now(model.device) - start
            if i > 0:  # the first warms up
                shares[decoding].append(1 - forward.seconds / seconds)
                steps[decoding].append(1e3 * seconds / output.forwards.max().item())
    rows = {}
    for decoding in DECODINGS:
        few, many = (counted(model, forward, inputs, decoding, n) for n in (2, new_tokens))
        forwards = many.pop("forwards") - few.pop("forwards")
        rows[decoding] = {
            "share_outside_forward": spread(shares[decoding]),
            "milliseconds_per_step": spread(steps[decoding]),
            "per_step": {name: (many[name] - few[name]) / forwards for name in sorted(many)},
        }
    return rows


def table(results: list[dict]) -> str:
    """In Markdown."""
    lines = [
        "| batch | decoding | outside the forward (min - max) | ms per step | a step has |",
        "| ---: | --- | ---: | ---: | --- |",
    ]
    for row in results:
        share, step = row["share_outside_forward"], row["milliseconds_per_step"]
        lines.append(
            f"| {row['batch_size']} | {row['decoding']}"
            f" | {share['median']:.1%} ({share['min']:.1%} - {share['max']:.1%}) | {step['median']:.2f}"
            f" | {', '.join(f'{name} {number:.1f}' for name, number in row['per_step'].items())} |"
        )
    return "\n".join(lines)


def panels(results: list[dict]) -> list[Panel]:
    lines = {
        decoding: [
            (row["batch_size"], row["share_outside_forward"]["median"])
            for row in results
            if row["decoding"] == decoding
        ]
        for decoding in DECODINGS
    }
    return [Panel("time outside the model's forward", "batch size", "share of a call", lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--window-size", type=int, help="the checkpoint's by default")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "overhead.json")
    given = parser.parse_args()
    model = model_of(given)
    if given.window_size is not None:
        model.generation_config.window_size = given.window_size
    tokenizer = None if given.shape is not None else AutoTokenizer.from_pretrained(given.model)
    forward = Forward(model)
    results = []
    for batch_size in given.batch_sizes:
        torch.manual_seed(0)
        inputs = prompts(model, tokenizer, batch_size, 64)
        measured = measure(model, forward, inputs, given.new_tokens, given.repeats)
        results += [{"batch_size": batch_size, "decoding": decoding, **row} for decoding, row in measured.items()]
    print(table(results))
    about = {"shape": given.shape, "dtype": str(model.dtype), "window_size": model.generation_config.window_size}
    write_report(given.out, results, model.device, **about)
    plot(given.out, panels(results))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
