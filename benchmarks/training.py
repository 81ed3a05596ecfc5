"""What dual-stream training costs beside plain causal training: the time of a step and its peak memory.

    python benchmarks/training.py [--lengths 512 1024 2048 4096] [--repeats 5] [--out benchmarks/results/training.json]

A model with random weights and one sample of L tokens, a quarter of them prompt. A step is forward, backward, AdamW.
"plain" trains on `labels` under causal attention; the others train on DualStreamCollator's batch of the same tokens,
2L rows, by attention form. Batches are made beforehand. Steps take turns (plain, dual_stream, ..., plain, ...).
Memory is measured in a fresh process each: how far a step of L tokens raises the peak above that of a first step of 16
tokens, in which gradients and optimizer state come into being. The peak is VmHWM of /proc (which needs Linux), and on
a GPU torch.cuda.max_memory_allocated. On a CPU the model is float32, on a GPU bfloat16.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from common import now, peak_bytes

from wedlm import DualStreamCollator, WeDLMConfig, WeDLMForCausalLM
from wedlm.evaluation.provenance import write_report
from wedlm.training.loss import scale_weights, weight_sums

HAS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if HAS_GPU else ("cpu", torch.float32)
MODEL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
MASK = MODEL["vocab_size"] - 1
FORMS = ("dual_stream", "sdpa", "flex_attention") if HAS_GPU else ("dual_stream", "sdpa")
SIDES = ("plain", *FORMS)
LENGTHS = (512, 1024, 2048, 4096, 8192) if HAS_GPU else (512, 1024, 2048, 4096)
LARGEST_DENSE_MASKS = 6e9  # bytes


def batch_of(length: int, side: str) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(MASK, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    num_prompt = length // 4
    labels = [-100] * num_prompt + input_ids[num_prompt:]
    row = {"input_ids": input_ids, "labels": labels, "sample_lengths": [length], "sample_indices": [0]}
    if side == "plain":
        batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
    else:
        batch = DualStreamCollator(mask_token_id=MASK)([row])
        batch = scale_weights(batch, weight_sums(batch))
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def stepper(side: str) -> Callable[[dict], float]:
    """A new model and optimizer, as a function that trains on a batch and returns the seconds that it took."""
    torch.manual_seed(0)
    attention = "sdpa" if side == "plain" else side
    config = WeDLMConfig(**MODEL, mask_token_id=MASK, attn_implementation=attention)
    model = WeDLMForCausalLM(config).to(DEVICE, DTYPE).train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: dict) -> float:
        start = now(DEVICE)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return now(DEVICE) - start

    return step


def measure_seconds(length: int, sides: list[str], repeats: int) -> dict[str, list[float]]:
    steps, batches = {side: stepper(side) for side in sides}, {side: batch_of(length, side) for side in sides}
    seconds = {side: [] for side in sides}
    for i in range(repeats + 1):
        for side in sides:
            taken = steps[side](batches[side])
            if i > 0:  # the first warms up
                seconds[side].append(taken)
    return seconds


def bytes_of_a_step(length: int, side: str) -> int:
    step = stepper(side)
    step(batch_of(16, side))
    batch = batch_of(length, side)
    before = peak_bytes()
    step(batch)
    return peak_bytes() - before


def measure_bytes(length: int, side: str) -> int:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as fresh_process:
        return fresh_process.submit(bytes_of_a_step, length, side).result()


def dense_masks_bytes(length: int) -> int:
    """What attention under a dense mask keeps: one of floating point for each layer."""
    return MODEL["num_hidden_layers"] * DTYPE.itemsize * (2 * length) ** 2


def measure(length: int, repeats: int, previous: dict[str, dict]) -> list[dict]:
    """The rows of one length; `previous` has those of the length before, by side."""
    left_out = {"sdpa"} if dense_masks_bytes(length) > LARGEST_DENSE_MASKS else set()
    all_seconds = measure_seconds(length, [side for side in SIDES if side not in left_out], repeats)
    rows = []
    for side in SIDES:
        row = {"length": length, "side": side}
        if side in left_out:
            row["left_out"] = f"Its masks alone would take {dense_masks_bytes(length) / 1e9:.1f} GB."
        else:
            seconds = all_seconds[side]
            median = statistics.median(seconds)
            row["seconds_per_step"] = {"median": median, "min": min(seconds), "max": max(seconds)}
            row["times_plain"] = median / statistics.median(all_seconds["plain"])
            row["bytes"] = measure_bytes(length, side)
            if "bytes" in previous.get(side, {}):
                row["memory_exponent"] = exponent(previous[side], row)
        rows.append(row)
    return rows


def exponent(shorter: dict, longer: dict) -> float:
    """1 where memory is linear in the length, 2 where it is quadratic."""
    growth = longer["bytes"] / max(shorter["bytes"], 1)
    return math.log(max(growth, 1)) / math.log(longer["length"] / shorter["length"])


def line_of(row: dict) -> str:
    start = f"{row['length']:6}  {row['side']:14}  "
    if "left_out" in row:
        return start + row["left_out"]
    seconds = row["seconds_per_step"]
    spread = f"{seconds['median']:8.3f} ({seconds['min']:.3f}-{seconds['max']:.3f})"
    memory_exponent = f"{row['memory_exponent']:.2f}" if "memory_exponent" in row else ""
    return start + f"{spread:26}  {row['times_plain']:11.2f}  {row['bytes'] / 1e6:6.0f}  {memory_exponent:>8}"


def plot(rows: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, title, value in zip(
        figure.subplots(1, 2),
        ("seconds per step", "peak memory of a step, MB"),
        (lambda row: row["seconds_per_step"]["median"], lambda row: row["bytes"] / 1e6),
        strict=True,
    ):
        for side in SIDES:
            points = [(row["length"], value(row)) for row in rows if row["side"] == side and "left_out" not in row]
            axes.plot(*zip(*points, strict=True), marker="o", label=side)
        axes.set(title=title, xlabel="tokens of the sample", xscale="log", yscale="log")
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training.json")
    arguments = parser.parse_args()
    rows, previous = [], {}
    print("length  side            seconds per step (min-max)  times plain      MB  exponent")
    for length in sorted(arguments.lengths):
        of_length = measure(length, arguments.repeats, previous)
        for row in of_length:
            print(line_of(row), flush=True)
        rows += of_length
        previous = {row["side"]: row for row in of_length}
    results = {"model": MODEL, "dtype": str(DTYPE).removeprefix("torch."), "rows": rows}
    write_report(arguments.out, results, DEVICE)
    plot(rows, arguments.out.with_suffix(".png"))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
