"""How close to the hardware's limit decoding is on a GPU: one table, for benchmarks/RESULTS.md.

    python benchmarks/gpu.py [--shape qwen3-8b] [--batch-sizes 1 16] [--length 1024] [--window-size 16]
                             [--repeats 5] [--out benchmarks/results/gpu.json]

It needs torch, transformers and this repository, no weights: they are random in the given shape. All sides take turns
in one run. Milliseconds per step are of whole calls of generate(), what comes before the second step taken off: of two
calls that differ in --new-tokens, the difference over that of their forwards. The memory floor is the bytes of the
weights and of the cache's text over the bandwidth that a maximum over a large tensor reaches in the same run.

- stock: transformers' own class for Qwen3, the same weights, cache_implementation="static" (compiled on a GPU)
- autoregressive: this package's class in decoding="autoregressive", likewise
- one slot, streaming, verified: cache_implementation="static" (compiled on a GPU), one slot filled per forward
- streaming, ordinary steps: the same without a static cache

A step's time also says at how many tokens per second text would come of which a forward fills as much as the demo
checkpoint does on word problems (hub_card/wedlm-demo/report.json), beside what the memory floor allows decoding token
by token at the same batch size.
"""

import argparse
import json
from pathlib import Path

import torch
from common import Panel, add_model_arguments, model_of, now, plot, spread
from step import bytes_per_second, floors
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.provenance import write_report

STATIC = {"cache_implementation": "static"}
ONE_BY_ONE = {"entropy_threshold": None}  # of random weights nothing else has a meaning


def stock_model(model: PreTrainedModel) -> Qwen3ForCausalLM:
    """transformers' own class around the same weights, without a copy of them."""
    fields = model.config.to_dict()
    config = Qwen3Config(**{name: fields[name] for name in Qwen3Config().to_dict() if name in fields})
    with torch.device("meta"):
        stock = Qwen3ForCausalLM._from_config(config, dtype=model.dtype)
    stock.load_state_dict(model.state_dict(), assign=True)
    stock.model.rotary_emb = model.model.rotary_emb
    return stock.eval()


def sides(model: PreTrainedModel, window_size: int) -> dict[str, tuple[PreTrainedModel, dict]]:
    window = {"window_size": window_size, **ONE_BY_ONE}
    return {
        "stock": (stock_model(model), STATIC),
        "autoregressive": (model, {"decoding": "autoregressive", **STATIC}),
        "one slot": (model, {"decoding": "streaming", **ONE_BY_ONE, "window_size": 1, **STATIC}),
        "streaming": (model, {"decoding": "streaming", **window, **STATIC}),
        "verified": (model, {"decoding": "verified", "window_size": window_size, **STATIC}),
        "streaming, ordinary steps": (model, {"decoding": "streaming", **window}),
    }


def call(model: PreTrainedModel, settings: dict, tokens: torch.Tensor, new_tokens: int) -> tuple[float, int]:
    """Seconds and forwards of one call."""
    start = now(tokens.device)
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        pad_token_id=0,
        **settings,
    )
    forwards = output.forwards.max().item() if hasattr(output, "forwards") else new_tokens
    return now(tokens.device) - start, forwards


@torch.no_grad()
def measure(given: argparse.Namespace, model: PreTrainedModel, batch_size: int, bandwidth: float) -> list[dict]:
    torch.manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, given.length), device=model.device)
    tokens = tokens.where(tokens != model.config.mask_token_id, 0)
    few, many = given.new_tokens // 4, given.new_tokens
    of_side = sides(model, given.window_size)
    milliseconds = {name: [] for name in of_side}
    for i in range(given.repeats + 2):
        for name, (what, settings) in of_side.items():
            (short, some), (long, more) = (call(what, settings, tokens, n) for n in (few, many))
            if i > 1:  # the first two compile and warm up
                milliseconds[name].append(1e3 * (long - short) / (more - some))
    num_bytes, _ = floors(model, batch_size, 1, given.length)
    floor = 1e3 * num_bytes / bandwidth
    one_row = spread(milliseconds["one slot"])["median"]
    on_word_problems = json.loads((DEMO_FOLDER / "report.json").read_text())["results"]["word_problems"]
    rows = []
    for name in of_side:
        taken = spread(milliseconds[name])
        filled = on_word_problems.get(name.partition(",")[0], {"tokens_per_forward": 1.0})["tokens_per_forward"]
        rows.append(
            {
                "batch_size": batch_size,
                "side": name,
                "milliseconds_per_step": taken,
                "memory_floor_milliseconds": floor,
                "times_floor": taken["median"] / floor,
                "times_one_slot": taken["median"] / one_row,
                "tokens_per_forward": filled,
                "tokens_per_second": 1e3 * batch_size * filled / taken["median"],
                "tokens_per_second_at_floor": 1e3 * batch_size / floor,
            }
        )
    return rows


def table(rows: list[dict]) -> str:
    """In Markdown."""
    lines = [
        "| batch | decoding | ms per step (min - max) | times the floor | times one slot | tokens/s | floor's, AR |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        taken = row["milliseconds_per_step"]
        lines.append(
            f"| {row['batch_size']} | {row['side']} | {taken['median']:.2f} ({taken['min']:.2f} - {taken['max']:.2f})"
            f" | {row['times_floor']:.2f} | {row['times_one_slot']:.2f} | {row['tokens_per_second']:.0f}"
            f" | {row['tokens_per_second_at_floor']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.set_defaults(shape="qwen3-8b")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--window-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    given = parser.parse_args()
    model = model_of(given)
    bandwidth = bytes_per_second(model.device, 20)
    rows = [row for batch_size in given.batch_sizes for row in measure(given, model, batch_size, bandwidth)]
    print(f"{given.shape}, {model.dtype}, {given.length} tokens of context, memory {bandwidth / 1e9:.0f} GB/s\n")
    print(table(rows))
    about = {"shape": given.shape, "dtype": str(model.dtype), "length": given.length, "window_size": given.window_size}
    write_report(given.out, {"bytes_per_second": bandwidth, "rows": rows}, model.device, **about)
    lines = {
        name: [(row["batch_size"], row["milliseconds_per_step"]["median"]) for row in rows if row["side"] == name]
        for name in dict.fromkeys(row["side"] for row in rows)
    }
    lines["memory floor"] = [
        (row["batch_size"], row["memory_floor_milliseconds"]) for row in rows if row["side"] == "stock"
    ]
    plot(given.out, [Panel(f"a step of {given.shape}", "batch size", "milliseconds", lines)])
    print(f"\nwritten to {given.out}")


if __name__ == "__main__":
    main()
