"""How much of parallel decoding is not the model: the share of `_sample` spent outside model.forward.

    python benchmarks/overhead.py [--repeats 7] [--new-tokens 256] [--out benchmarks/results/overhead.json]

A model with random weights (vocabulary 2048, 4 layers, width 256), window 16, streaming at the default settings.
"""

import argparse
import functools
import statistics
import time
from pathlib import Path

import torch

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.generation.generation_wedlm import WeDLMGenerationMixin
from wedlm.hub_card.provenance import write_report


def random_model() -> WeDLMForCausalLM:
    torch.manual_seed(0)
    config = WeDLMConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        mask_token_id=2047,
    )
    return WeDLMForCausalLM(config).eval()


class Stopwatch:
    """Adds up the seconds spent in a method."""

    def __init__(self, owner, name: str):
        self.seconds = 0.0
        original = getattr(owner, name)

        @functools.wraps(original)  # generate() reads the signature of forward
        def timed(*args, **kwargs):
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(owner, name, timed)


def measure(model: WeDLMForCausalLM, in_sample: Stopwatch, in_forward: Stopwatch, batch, new_tokens, repeats) -> dict:
    prompt = torch.randint(0, 2000, (batch, 16))
    shares, steps = [], []
    for i in range(repeats + 1):
        in_sample.seconds = in_forward.seconds = 0.0
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            eos_token_id=None,
            return_dict_in_generate=True,
        )
        forwards = output.forwards.max().item()
        if i > 0:  # the first warms up
            shares.append(1 - in_forward.seconds / in_sample.seconds)
            steps.append(1000 * in_sample.seconds / forwards)
    return {
        "batch": batch,
        "new_tokens": new_tokens,
        "forwards": forwards,
        "share_outside_forward": {"median": statistics.median(shares), "min": min(shares), "max": max(shares)},
        "milliseconds_per_step": {"median": statistics.median(steps), "min": min(steps), "max": max(steps)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "overhead.json")
    arguments = parser.parse_args()
    model = random_model()
    in_sample, in_forward = Stopwatch(WeDLMGenerationMixin, "_sample"), Stopwatch(model, "forward")
    results = []
    print("batch  forwards  ms per step (min-max)     share outside the forward (min-max)")
    for batch in (1, 8):
        row = measure(model, in_sample, in_forward, batch, arguments.new_tokens, arguments.repeats)
        step, share = row["milliseconds_per_step"], row["share_outside_forward"]
        print(
            f"{batch:5}  {row['forwards']:8}  {step['median']:6.2f} ({step['min']:.2f}-{step['max']:.2f})"
            f"         {share['median']:6.1%} ({share['min']:.1%}-{share['max']:.1%})"
        )
        results.append(row)
    write_report(arguments.out, results, "cpu")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
