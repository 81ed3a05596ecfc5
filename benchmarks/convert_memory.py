"""The memory that a conversion takes: the peak of a fresh process that converts a synthetic checkpoint.

    python benchmarks/convert_memory.py [--gigabytes 2] [--out benchmarks/results/convert_memory.json]

The checkpoint is a Qwen3 with bfloat16 weights in four shards. Its vocabulary is full, so that the embedding and the
head grow by one token and their shards are rewritten; the embedding alone is an eighth of the checkpoint. It is
converted to WeDLM and back again. The peak is read from /proc, which needs Linux.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import new_parser, save
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

HIDDEN_SIZE, NUM_SHARDS = 1024, 4
CONVERT = """
from pathlib import Path
from wedlm import {function}
def peak():  # getrusage() would begin with the peak of the parent process
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
before = peak()
{function}({source!r}, {out!r})
print(before, peak())
"""


def save_synthetic(folder: Path, gigabytes: float) -> list[int]:
    """Writes the checkpoint shard by shard and returns the sizes of the shards."""
    config = config_of_size(gigabytes)
    config.save_pretrained(folder)
    shards = shapes_by_shard(config)
    weight_map, sizes = {}, []
    for i, shapes in enumerate(shards, start=1):
        path = folder / f"model-{i:05}-of-{NUM_SHARDS:05}.safetensors"
        generator = torch.Generator().manual_seed(i)
        save_file({n: torch.randn(s, generator=generator, dtype=torch.bfloat16) for n, s in shapes.items()}, path)
        weight_map |= dict.fromkeys(shapes, path.name)
        sizes.append(path.stat().st_size)
    total = sum(shape.numel() for shapes in shards for shape in shapes.values())
    index = {"metadata": {"total_size": 2 * total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sizes


def config_of_size(gigabytes: float) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=int(gigabytes * 1e9 / 8 / (2 * HIDDEN_SIZE)),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=int(gigabytes * 1e9 / 4 / (2 * 3 * HIDDEN_SIZE)) // 2,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        dtype=torch.bfloat16,
        architectures=["Qwen3ForCausalLM"],
    )


def shapes_by_shard(config: Qwen3Config) -> list[dict[str, torch.Size]]:
    """The shapes of all weights by name, spread evenly over the shards."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Qwen3ForCausalLM(config).state_dict().items()}
    total = sum(shape.numel() for shape in shapes.values())
    shards, written = [{} for _ in range(NUM_SHARDS)], 0
    for name, shape in shapes.items():
        shards[min(written * NUM_SHARDS // total, NUM_SHARDS - 1)][name] = shape
        written += shape.numel()
    return shards


def measure(function: str, source: Path, out: Path, sizes: list[int]) -> dict:
    code = CONVERT.format(function=function, source=str(source), out=str(out))
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    before, peak = map(int, result.stdout.split())
    return {
        "function": function,
        "checkpoint_bytes": sum(sizes),
        "largest_shard_bytes": max(sizes),
        "peak_bytes_after_imports": before,
        "peak_bytes": peak,
    }


def main() -> None:
    parser = new_parser(__doc__, "convert_memory")
    parser.add_argument("--gigabytes", type=float, default=2)
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        source, wedlm, back = (Path(folder, name) for name in ("source", "wedlm", "back"))
        sizes = save_synthetic(source, given.gigabytes)
        for function, start, end in (("convert_to_wedlm", source, wedlm), ("convert_to_autoregressive", wedlm, back)):
            measured = measure(function, start, end, sizes)
            print(", ".join(f"{name} {value / 1e6:.0f} MB" for name, value in measured.items() if name != "function"))
            results.append(measured)
        for path in source.glob("*.safetensors"):
            same = subprocess.run(["cmp", "--silent", path, back / path.name]).returncode == 0
            if not same:
                raise SystemExit(f"{path.name} has changed in the conversion to WeDLM and back.")
    save(given.out, results, "cpu")


if __name__ == "__main__":
    main()
