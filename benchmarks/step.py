"""The time of one decoding step by its queries and the length of the cache, beside what the hardware allows.

    python benchmarks/step.py [--shape qwen3-8b] [--rows 1 8 16 32 64] [--lengths 256 1024 4096] [--batch-size 1]
                              [--repeats 20] [--out benchmarks/results/step.json]

A step is the model's forward over a number of queries (--rows) behind a cache with a number of entries (--lengths),
and all cells take turns. Two floors are measured in the same run. The memory floor is the bytes of the weights and of
the cache's live part over the memory bandwidth, which is that of a maximum over a large tensor. The arithmetic floor
is the number of operations over the rate of large matrix products. Attention alone is measured as well: a step behind
a longer cache should take as long as one behind the shortest cache and the additional attention ("predicted").
Milliseconds are medians. In the files and on the command line queries are called "rows".
"""

import statistics
from collections.abc import Callable

import torch
from common import Panel, add_model_arguments, markdown, model_of, new_parser, save, with_range
from huggingface_hub.utils import tqdm
from transformers import PreTrainedModel

from wedlm.evaluation.turns import median_and_range, seconds_in_turns
from wedlm.generation.row_cache import RowCache, attend, score_bias
from wedlm.generation.transformers_internals import CACHE

NAMES = {"rows": "queries", "length": "cache"}  # of the axes, by their keys in the results


def median_seconds(work: Callable, device: torch.device, repeats: int) -> float:
    return statistics.median(seconds_in_turns({"work": work}, device, repeats, num_warm_up=2)["work"])


def bytes_per_second(device: torch.device, repeats: int) -> float:
    """The bandwidth of a reduction, which writes nothing."""
    large = torch.ones((2**32 if device.type == "cuda" else 2**28) // 4, device=device)
    return 4 * large.numel() / median_seconds(lambda: large.max(), device, repeats)


def operations_per_second(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    size = 8192 if device.type == "cuda" else 1024
    left = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / median_seconds(lambda: left @ left, device, repeats)


class Step:
    """The forward of `num_queries` queries behind a cache with `length` entries."""

    def __init__(self, model: PreTrainedModel, batch_size: int, num_queries: int, length: int):
        self.model, self.num_queries, self.length = model, num_queries, length
        tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length + num_queries), device=model.device)
        self.tokens = tokens[:, length:]
        self.positions = torch.arange(length, length + num_queries, device=model.device).expand(batch_size, -1)
        self.cache = RowCache(batch_size, length + num_queries, model.device)
        for start in range(0, length, 1024):
            part = tokens[:, start : min(start + 1024, length)]
            mask = self.cache.begin_forward(part.shape[1], start + part.shape[1])
            places = torch.arange(start, start + part.shape[1], device=model.device).expand(batch_size, -1)
            model.model(part, attention_mask=mask, position_ids=places, **{CACHE: self.cache}, use_cache=True)
            self.cache.commit(torch.full_like(self.cache.lengths, part.shape[1]))

    def __call__(self) -> torch.Tensor:
        mask = self.cache.begin_forward(self.num_queries, self.length + self.num_queries)
        return self.model(
            self.tokens,
            attention_mask=mask,
            position_ids=self.positions,
            **{CACHE: self.cache},
            use_cache=True,
        ).logits

    def attention(self) -> None:
        """The attention of all layers, with the mask that they share."""
        config, keys = self.model.config, self.cache.layers[0].keys
        query = keys.new_ones(len(keys), config.num_attention_heads, self.num_queries, config.head_dim)
        is_seen = self.cache.begin_forward(self.num_queries, self.length + self.num_queries)
        bias = score_bias(is_seen, self.num_queries, config, query)
        for layer in self.cache.layers:
            live = (states[:, :, : self.cache.place.valid_length] for states in (layer.keys, layer.values))
            attend(query, *live, bias, 0.1, dropout=0.0)


def floors(model: PreTrainedModel, batch_size: int, num_queries: int, length: int) -> tuple[int, int]:
    """The bytes that a step must read, and the operations that it must do."""
    config = model.config
    embeddings = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    weights = sum(weight.numel() for weight in model.parameters()) - embeddings
    entries = batch_size * (length + num_queries) * config.num_hidden_layers
    cache = 2 * entries * config.num_key_value_heads * config.head_dim
    attention = 4 * num_queries * entries * config.num_attention_heads * config.head_dim
    size = next(model.parameters()).element_size()
    return size * (weights + cache), 2 * batch_size * num_queries * weights + attention


@torch.no_grad()
def measure(
    model: PreTrainedModel, batch_size: int, nums_queries: list[int], lengths: list[int], repeats: int
) -> dict:
    """The two rates of the hardware, and the numbers of each cell."""
    device = model.device
    bandwidth = bytes_per_second(device, repeats)
    rate = operations_per_second(device, model.dtype, repeats)
    cells = [(num_queries, length) for length in lengths for num_queries in nums_queries]
    steps = {cell: Step(model, batch_size, *cell) for cell in cells}
    # All steps come before all attentions, so that each of them finds its cache cold.
    calls = {("step", cell): step for cell, step in steps.items()}
    calls |= {("attention", cell): step.attention for cell, step in steps.items()}
    with tqdm(total=len(calls) * (repeats + 2), unit=" calls") as bar:
        seconds = seconds_in_turns(calls, device, repeats, num_warm_up=2, bar=bar)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    table = []
    for num_queries, length in cells:
        cell, shortest, fewest = (num_queries, length), (num_queries, min(lengths)), (nums_queries[0], length)
        num_bytes, operations = floors(model, batch_size, *cell)
        more_attention = median["attention", cell] - median["attention", shortest]
        table.append(
            {
                "rows": num_queries,
                "length": length,
                "milliseconds": median_and_range([1e3 * value for value in seconds["step", cell]]),
                "attention_milliseconds": 1e3 * median["attention", cell],
                "predicted_milliseconds": 1e3 * (median["step", shortest] + more_attention),
                "memory_floor_milliseconds": 1e3 * num_bytes / bandwidth,
                "arithmetic_floor_milliseconds": 1e3 * operations / rate,
                "times_floor": median["step", cell] / max(num_bytes / bandwidth, operations / rate),
                "times_first_row_count": median["step", cell] / median["step", fewest],
            }
        )
    return {"bytes_per_second": bandwidth, "operations_per_second": rate, "batch_size": batch_size, "steps": table}


def slope(steps: list[dict], along: str, other: str) -> dict[int, float]:
    """Milliseconds per unit of `along` by least squares, for each value of `other`."""
    slopes = {}
    for value in sorted({step[other] for step in steps}):
        points = [(step[along], step["milliseconds"]["median"]) for step in steps if step[other] == value]
        if len(points) > 1:
            slopes[value] = statistics.linear_regression(*zip(*points, strict=True)).slope
    return slopes


def table(results: dict) -> str:
    """For benchmarks/RESULTS.md: the cells, and the cost of one more query and of one more entry."""
    speeds = (
        f"Memory {results['bytes_per_second'] / 1e9:.1f} GB/s, products {results['operations_per_second'] / 1e9:.0f} G"
        " operations/s."
    )
    header = ["queries", "cache", "ms (min - max)", "memory floor", "arithmetic floor", "times floor"]
    lines = [
        [
            step["rows"],
            step["length"],
            with_range(step["milliseconds"], ".2f"),
            f"{step['memory_floor_milliseconds']:.2f}",
            f"{step['arithmetic_floor_milliseconds']:.2f}",
            f"{step['times_floor']:.1f}",
            f"{step['attention_milliseconds']:.2f}",
            f"{step['predicted_milliseconds']:.2f}",
        ]
        for step in results["steps"]
    ]
    shown = [speeds, "", markdown([*header, "attention", "predicted"], lines, left=()), ""]
    for along, other, one in (("rows", "length", "query"), ("length", "rows", "entry")):
        slopes = slope(results["steps"], along, other)
        more = ", ".join(f"{1e3 * ms:.2f} ({NAMES[other]} {value})" for value, ms in slopes.items())
        if more:
            shown.append(f"Microseconds for one {one} more: {more}.")
    return "\n".join(shown)


def panels(results: dict) -> list[Panel]:
    steps, shown = results["steps"], []
    for along, other in (("rows", "length"), ("length", "rows")):
        lines = {
            f"{NAMES[other]} {value}": [
                (step[along], step["milliseconds"]["median"]) for step in steps if step[other] == value
            ]
            for value in sorted({step[other] for step in steps})
        }
        shown.append(Panel(f"one step by its {NAMES[along]}", NAMES[along], "milliseconds", lines))
    return shown


def main() -> None:
    parser = new_parser(__doc__, "step")
    add_model_arguments(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32, 64], help="queries of a step")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 1900], help="entries of the cache")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    model = model_of(given)
    results = measure(model, given.batch_size, given.rows, given.lengths, given.repeats)
    print(table(results))
    save(given.out, results, model.device, panels(results), shape=given.shape, dtype=str(model.dtype))


if __name__ == "__main__":
    main()
