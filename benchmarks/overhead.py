"""The cost of a step outside the model: time outside its forward, operations, and reads of the device by the host.

    python benchmarks/overhead.py [--shape qwen3-8b] [--batch-sizes 1 8] [--new-tokens 96] [--repeats 7]
                                  [--out benchmarks/results/overhead.json]

Every decoding answers the same held-out questions, or with --shape writes as many tokens, and the decodings take
turns. The share of time is that of the whole call and so includes what generate() does before and after its loop;
transformers' own decoding has such a share too. Operations and looks are counted in a separate run, and the number is
what one more forward adds. On a CPU an operation is one that torch dispatches and that makes a new tensor or changes
one, and a look is a value that the host reads. On a GPU they are kernel launches and synchronisations.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from common import (
    DECODINGS,
    Panel,
    add_model_arguments,
    markdown,
    model_of,
    new_parser,
    save,
    tokenizer_of,
    with_range,
)
from prompts import prompts
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.evaluation.turns import median_and_range, now, take_turns
from wedlm.generation.window import Window

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")


class Forward:
    """Replaces the model's forward by one that adds up its `seconds` and says whether it `is_running`."""

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
    """Counts operations inside and outside the forward, and values of the device that the host reads."""

    def __init__(self, forward: Forward):
        super().__init__()
        self.forward, self.numbers = forward, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.numbers["looks"] += 1
        elif not func.is_view and func.overloadpacket is not torch.ops.aten.detach:
            self.numbers["inside" if self.forward.is_running else "outside"] += 1
        return func(*args, **(kwargs or {}))


def generate(model: PreTrainedModel, inputs: dict, decoding: str, new_tokens: int) -> GenerateDecoderOnlyOutput:
    return model.generate(
        **inputs, decoding=decoding, max_new_tokens=new_tokens, do_sample=False, return_dict_in_generate=True
    )


@contextmanager
def counted_status_reads() -> Iterator[Counter]:
    """Counts reads of the decoding's status, which on a CPU are a tolist() and no operation."""
    read, numbers = Window.read_status, Counter()

    def counting(*arguments):
        numbers["looks"] += 1
        return read(*arguments)

    Window.read_status = counting
    try:
        yield numbers
    finally:
        Window.read_status = read


def counted(model: PreTrainedModel, forward: Forward, inputs: dict, decoding: str, new_tokens: int) -> Counter:
    """Operations, looks and forwards of one call."""
    if model.device.type == "cuda":
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            output = generate(model, inputs, decoding, new_tokens)
        names = Counter(event.name for event in profiled.events())
        numbers = Counter(
            launches=sum(number for name, number in names.items() if name.startswith(LAUNCHES)),
            looks=sum(number for name, number in names.items() if "Synchronize" in name),
        )
    else:
        with counted_status_reads() as status_reads, Counts(forward) as mode:
            output = generate(model, inputs, decoding, new_tokens)
        numbers = mode.numbers + status_reads
    return numbers + Counter(forwards=output.forwards.max().item())


def counts_per_step(
    model: PreTrainedModel, forward: Forward, inputs: dict, decoding: str, new_tokens: int
) -> dict[str, float]:
    """The difference of a long and a short call over the difference of their forwards."""
    few, many = (counted(model, forward, inputs, decoding, number) for number in (2, new_tokens))
    forwards = many.pop("forwards") - few.pop("forwards")
    return {name: (many[name] - few[name]) / forwards for name in sorted(many)}


def measure(model: PreTrainedModel, forward: Forward, inputs: dict, new_tokens: int, repeats: int) -> dict[str, dict]:
    def call(decoding: str) -> GenerateDecoderOnlyOutput:
        forward.seconds = 0.0
        return generate(model, inputs, decoding, new_tokens)

    calls = {decoding: functools.partial(call, decoding) for decoding in DECODINGS}
    shares, steps = ({decoding: [] for decoding in DECODINGS} for _ in range(2))
    for turn in take_turns(calls, model.device, repeats):
        shares[turn.name].append(1 - forward.seconds / turn.seconds)
        steps[turn.name].append(1e3 * turn.seconds / turn.result.forwards.max().item())
    return {
        decoding: {
            "share_outside_forward": median_and_range(shares[decoding]),
            "milliseconds_per_step": median_and_range(steps[decoding]),
            "per_step": counts_per_step(model, forward, inputs, decoding, new_tokens),
        }
        for decoding in DECODINGS
    }


def table(results: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    header = ["batch", "decoding", "outside the forward (min - max)", "ms per step", "a step has"]
    lines = [
        [
            numbers["batch_size"],
            numbers["decoding"],
            with_range(numbers["share_outside_forward"], ".1%"),
            f"{numbers['milliseconds_per_step']['median']:.2f}",
            ", ".join(f"{name} {number:.1f}" for name, number in numbers["per_step"].items()),
        ]
        for numbers in results
    ]
    return markdown(header, lines, left={"decoding", "a step has"})


def panels(results: list[dict]) -> list[Panel]:
    lines = {
        decoding: [
            (numbers["batch_size"], numbers["share_outside_forward"]["median"])
            for numbers in results
            if numbers["decoding"] == decoding
        ]
        for decoding in DECODINGS
    }
    return [Panel("time outside the model's forward", "batch size", "share of a call", lines)]


def main() -> None:
    parser = new_parser(__doc__, "overhead")
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--window-size", type=int, help="the checkpoint's by default")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    model, tokenizer = model_of(given), tokenizer_of(given)
    if given.window_size is not None:
        model.generation_config.window_size = given.window_size
    forward = Forward(model)
    results = []
    for batch_size in given.batch_sizes:
        torch.manual_seed(0)
        inputs = prompts(model, tokenizer, batch_size, 64)
        measured = measure(model, forward, inputs, given.new_tokens, given.repeats)
        results += [
            {"batch_size": batch_size, "decoding": decoding, **numbers} for decoding, numbers in measured.items()
        ]
    print(table(results))
    about = {"shape": given.shape, "dtype": str(model.dtype), "window_size": model.generation_config.window_size}
    save(given.out, results, model.device, panels(results), **about)


if __name__ == "__main__":
    main()
