"""What one decoding step costs, by its rows and the length of the cache, beside what the hardware allows.

    python benchmarks/step.py [--shape qwen3-8b] [--rows 1 8 16 32 64] [--lengths 256 1024 4096] [--batch-size 1]
                              [--repeats 20] [--out benchmarks/results/step.json]

A step is the model's forward over so many rows behind a cache of so many entries; all cells take turns. The two floors
are measured in the same run: the bytes of the weights and of the cache's live part over the memory bandwidth (of a
maximum over a large tensor), and the operations over the rate of large matrix products. Attention alone is measured as
well: with it a longer cache should cost what the shortest does, and the attention over what is longer ("predicted").
Milliseconds are medians.
"""

import argparse
import statistics
from pathlib import Path

import torch
from common import Panel, add_model_arguments, median_seconds, model_of, now, plot, spread
from huggingface_hub.utils import tqdm
from transformers import PreTrainedModel

from wedlm.evaluation.provenance import write_report
from wedlm.generation.cache_attention import attend, score_bias
from wedlm.generation.row_cache import RowCache


def bytes_per_second(device: torch.device, repeats: int) -> float:
    """Read by a reduction, which writes nothing."""
    large = torch.ones((2**32 if device.type == "cuda" else 2**28) // 4, device=device)
    return 4 * large.numel() / median_seconds(lambda: large.max(), device, repeats)


def operations_per_second(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    size = 8192 if device.type == "cuda" else 1024
    left = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / median_seconds(lambda: left @ left, device, repeats)


class Step:
    """The forward of `num_rows` rows behind `length` entries that are in the cache."""

    def __init__(self, model: PreTrainedModel, batch_size: int, num_rows: int, length: int):
        self.model, self.num_rows, self.length = model, num_rows, length
        tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length + num_rows), device=model.device)
        self.tokens = tokens[:, length:]
        self.positions = torch.arange(length, length + num_rows, device=model.device).expand(batch_size, -1)
        self.cache = RowCache(batch_size, length + num_rows, model.device)
        for start in range(0, length, 1024):
            part = tokens[:, start : min(start + 1024, length)]
            mask = self.cache.begin_forward(part.shape[1], start + part.shape[1])
            places = torch.arange(start, start + part.shape[1], device=model.device).expand(batch_size, -1)
            model.model(part, attention_mask=mask, position_ids=places, past_key_values=self.cache, use_cache=True)
            self.cache.commit(torch.full_like(self.cache.lengths, part.shape[1]))

    def __call__(self) -> torch.Tensor:
        mask = self.cache.begin_forward(self.num_rows, self.length + self.num_rows)
        return self.model(
            self.tokens,
            attention_mask=mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits

    def attention(self) -> None:
        """That of all layers, with the mask that they share."""
        config, keys = self.model.config, self.cache.layers[0].keys
        query = keys.new_ones(len(keys), config.num_attention_heads, self.num_rows, config.head_dim)
        is_seen = self.cache.begin_forward(self.num_rows, self.length + self.num_rows)
        bias = score_bias(is_seen, self.num_rows, config, query)
        for layer in self.cache.layers:
            live = (states[:, :, : self.cache.place.live] for states in (layer.keys, layer.values))
            attend(query, *live, bias, 0.1, dropout=0.0)


def floors(model: PreTrainedModel, batch_size: int, num_rows: int, length: int) -> tuple[int, int]:
    """Bytes that a step must read, and operations that it must do."""
    config = model.config
    embeddings = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    weights = sum(weight.numel() for weight in model.parameters()) - embeddings
    entries = batch_size * (length + num_rows) * config.num_hidden_layers
    cache = 2 * entries * config.num_key_value_heads * config.head_dim
    attention = 4 * num_rows * entries * config.num_attention_heads * config.head_dim
    size = next(model.parameters()).element_size()
    return size * (weights + cache), 2 * batch_size * num_rows * weights + attention


@torch.no_grad()
def measure(model: PreTrainedModel, batch_size: int, rows: list[int], lengths: list[int], repeats: int) -> dict:
    device = model.device
    bandwidth = bytes_per_second(device, repeats)
    rate = operations_per_second(device, model.dtype, repeats)
    cells = {(num_rows, length): Step(model, batch_size, num_rows, length) for length in lengths for num_rows in rows}
    seconds, in_attention = ({cell: [] for cell in cells} for _ in range(2))
    for i in tqdm(range(repeats + 2), unit=" rounds"):
        for taken in (seconds, in_attention):  # one after the other, so that each finds a cell's cache cold
            for cell, step in cells.items():
                start = now(device)
                step() if taken is seconds else step.attention()
                if i > 1:  # the first two warm up
                    taken[cell].append(now(device) - start)
    attention = {cell: statistics.median(values) for cell, values in in_attention.items()}
    table = []
    for (num_rows, length), values in seconds.items():
        num_bytes, operations = floors(model, batch_size, num_rows, length)
        median, shortest = statistics.median(values), (num_rows, min(lengths))
        predicted = statistics.median(seconds[shortest]) + attention[num_rows, length] - attention[shortest]
        table.append(
            {
                "rows": num_rows,
                "length": length,
                "milliseconds": spread([1e3 * value for value in values]),
                "attention_milliseconds": 1e3 * attention[num_rows, length],
                "predicted_milliseconds": 1e3 * predicted,
                "memory_floor_milliseconds": 1e3 * num_bytes / bandwidth,
                "arithmetic_floor_milliseconds": 1e3 * operations / rate,
                "times_floor": median / max(num_bytes / bandwidth, operations / rate),
                "times_first_row_count": median / statistics.median(seconds[rows[0], length]),
            }
        )
    return {"bytes_per_second": bandwidth, "operations_per_second": rate, "batch_size": batch_size, "steps": table}


def slope(steps: list[dict], along: str, other: str) -> dict[int, float]:
    """Milliseconds for each one more of `along`, by least squares, for each value of `other`."""
    slopes = {}
    for value in sorted({step[other] for step in steps}):
        points = [(step[along], step["milliseconds"]["median"]) for step in steps if step[other] == value]
        if len(points) > 1:
            slopes[value] = statistics.linear_regression(*zip(*points, strict=True)).slope
    return slopes


def table(results: dict) -> str:
    """In Markdown, with what one more row or entry costs."""
    lines = [
        f"Memory {results['bytes_per_second'] / 1e9:.1f} GB/s, products {results['operations_per_second'] / 1e9:.0f} G"
        " operations/s.",
        "",
        "| rows | cache | ms (min - max) | memory floor | arithmetic floor | times floor | attention | predicted |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for step in results["steps"]:
        taken = step["milliseconds"]
        lines.append(
            f"| {step['rows']} | {step['length']} | {taken['median']:.2f} ({taken['min']:.2f} - {taken['max']:.2f})"
            f" | {step['memory_floor_milliseconds']:.2f} | {step['arithmetic_floor_milliseconds']:.2f}"
            f" | {step['times_floor']:.1f} | {step['attention_milliseconds']:.2f}"
            f" | {step['predicted_milliseconds']:.2f} |"
        )
    lines.append("")
    for along, other, one in (("rows", "length", "row"), ("length", "rows", "entry")):
        more = ", ".join(
            f"{1e3 * ms:.2f} ({other} {value})" for value, ms in slope(results["steps"], along, other).items()
        )
        if more:
            lines.append(f"Microseconds for one {one} more: {more}.")
    return "\n".join(lines)


def panels(results: dict) -> list[Panel]:
    return [
        Panel(
            f"one step by its {along}",
            along,
            "milliseconds",
            {
                f"{other} {value}": [
                    (step[along], step["milliseconds"]["median"]) for step in results["steps"] if step[other] == value
                ]
                for value in sorted({step[other] for step in results["steps"]})
            },
        )
        for along, other in (("rows", "length"), ("length", "rows"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 1900])
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "step.json")
    given = parser.parse_args()
    model = model_of(given)
    results = measure(model, given.batch_size, given.rows, given.lengths, given.repeats)
    print(table(results))
    write_report(given.out, results, model.device, shape=given.shape, dtype=str(model.dtype))
    plot(given.out, panels(results))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
