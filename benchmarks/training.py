"""What does dual-stream training cost beside plain causal training? The time of a step, and its peak memory.

    python benchmarks/training.py [--lengths 512 1024 2048 4096] [--repeats 5] [--out benchmarks/results/training.json]

A model with random weights trains on one sample of L tokens, a quarter of them prompt. A step is forward, backward and
AdamW. "plain" trains on `labels` under causal attention. The others train on DualStreamCollator's batch of the same
tokens, which has 2L queries, and are named after their form of attention. Batches are made beforehand, and steps take
turns. Memory is measured in a fresh process for each cell. A first step of 16 tokens creates gradients and optimizer
state, and the number is how far a step of L tokens raises the peak above that. The peak is VmHWM of /proc (which needs
Linux), and on a GPU torch.cuda.max_memory_allocated. On a CPU the model is float32, on a GPU bfloat16.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from common import in_fresh_process, markdown, median_and_range, new_parser, peak_bytes, save, with_range

from wedlm import DualStreamCollator, WeDLMConfig, WeDLMForCausalLM
from wedlm.evaluation.timing import interleaved_seconds
from wedlm.training.target_loss import scale_weights, weight_sums

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
SIDES = ("plain", "dual_stream", "sdpa", *(("flex_attention",) if HAS_GPU else ()))
LENGTHS = (512, 1024, 2048, 4096, 8192) if HAS_GPU else (512, 1024, 2048, 4096)
LARGEST_DENSE_MASKS = 6e9  # bytes


def batch_of(length: int, side: str) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(MASK, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    num_prompt = length // 4
    labels = [-100] * num_prompt + input_ids[num_prompt:]
    sample = {"input_ids": input_ids, "labels": labels, "sample_lengths": [length], "sample_indices": [0]}
    if side == "plain":
        batch = {name: torch.tensor([sample[name]]) for name in ("input_ids", "labels")}
    else:
        batch = DualStreamCollator(mask_token_id=MASK)([sample])
        batch = scale_weights(batch, weight_sums(batch))
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def new_step(side: str) -> Callable[[dict], torch.Tensor]:
    """A new model and optimizer, as a function that trains on a batch and returns its loss."""
    torch.manual_seed(0)
    attention = "sdpa" if side == "plain" else side
    config = WeDLMConfig(**MODEL, mask_token_id=MASK, attn_implementation=attention)
    model = WeDLMForCausalLM(config).to(DEVICE, DTYPE).train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: dict) -> torch.Tensor:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure_seconds(length: int, sides: list[str], repeats: int) -> dict[str, list[float]]:
    calls = {side: partial(new_step(side), batch_of(length, side)) for side in sides}
    return interleaved_seconds(calls, DEVICE, repeats)


def bytes_of_a_step(length: int, side: str) -> int:
    step = new_step(side)
    step(batch_of(16, side))
    batch = batch_of(length, side)
    before = peak_bytes()
    step(batch)
    return peak_bytes() - before


def measure_bytes(length: int, side: str) -> int:
    return in_fresh_process(bytes_of_a_step, length, side)


def dense_masks_bytes(length: int) -> int:
    """The bytes that attention under a dense mask keeps: a mask of floating-point numbers for each layer."""
    return MODEL["num_hidden_layers"] * DTYPE.itemsize * (2 * length) ** 2


def measure(length: int, repeats: int, previous: dict[str, dict]) -> list[dict]:
    """The cells of one length; `previous` has those of the length before it, by side."""
    left_out = {"sdpa"} if dense_masks_bytes(length) > LARGEST_DENSE_MASKS else set()
    all_seconds = measure_seconds(length, [side for side in SIDES if side not in left_out], repeats)
    seconds = {side: median_and_range(values) for side, values in all_seconds.items()}
    cells = []
    for side in SIDES:
        cell = {"length": length, "side": side}
        if side in left_out:
            cell["left_out"] = f"Its masks alone would take {dense_masks_bytes(length) / 1e9:.1f} GB."
        else:
            cell["seconds_per_step"] = seconds[side]
            cell["times_plain"] = seconds[side]["median"] / seconds["plain"]["median"]
            cell["bytes"] = measure_bytes(length, side)
            if "bytes" in previous.get(side, {}):
                cell["memory_exponent"] = exponent(previous[side], cell)
        cells.append(cell)
    return cells


def exponent(shorter: dict, longer: dict) -> float:
    """1 where memory is linear in the length, 2 where it is quadratic."""
    growth = longer["bytes"] / max(shorter["bytes"], 1)
    return math.log(max(growth, 1)) / math.log(longer["length"] / shorter["length"])


def table(cells: list[dict]) -> str:
    lines = []
    for cell in cells:
        if "left_out" in cell:
            lines.append([cell["length"], cell["side"], cell["left_out"], "", "", ""])
            continue
        seconds, growth = with_range(cell["seconds_per_step"], ".3f"), cell.get("memory_exponent")
        megabytes, times = f"{cell['bytes'] / 1e6:.0f}", f"{cell['times_plain']:.2f}"
        shown = "" if growth is None else f"{growth:.2f}"
        lines.append([cell["length"], cell["side"], seconds, times, megabytes, shown])
    header = ["length", "side", "seconds per step (min - max)", "times plain", "MB", "exponent"]
    return markdown(header, lines, left={"side"})


def main() -> None:
    parser = new_parser(__doc__, "training")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    cells, previous = [], {}
    for length in sorted(given.lengths):
        of_length = measure(length, given.repeats, previous)
        cells += of_length
        previous = {cell["side"]: cell for cell in of_length}
    results = {"model": MODEL, "dtype": str(DTYPE).removeprefix("torch."), "rows": cells}
    print(table(cells))
    save(given.out, results, DEVICE)


if __name__ == "__main__":
    main()
