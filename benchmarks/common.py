"""What is measured: a checkpoint, the demo by default, or random weights in the shape of a released one; and plots."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER

QWEN3 = {
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mask_token_id": 151_666,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "eos_token_id": None,
}
SHAPES = {
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "qwen3-1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"vocab_size": 512, "num_key_value_heads": 2, "head_dim": 16, "mask_token_id": 511},
}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(DEMO_FOLDER), help="a checkpoint; the demo by default")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")


def model_of(arguments: argparse.Namespace) -> PreTrainedModel:
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, arguments.dtype)
    if arguments.shape is None:
        return WeDLMForCausalLM.from_pretrained(arguments.model, dtype=dtype).to(device).eval()
    torch.manual_seed(0)
    config = WeDLMConfig(**{**QWEN3, **SHAPES[arguments.shape]}, dtype=dtype)
    with torch.device(device):
        return WeDLMForCausalLM._from_config(config, dtype=dtype).eval()


def peak_bytes() -> int:
    """The most memory that this process ever had, on a GPU the most allocated there. (Linux: VmHWM of /proc.)"""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def now(device: torch.device | str) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def median_seconds(work: Callable, device: torch.device, repeats: int) -> float:
    seconds = []
    for i in range(repeats + 2):
        start = now(device)
        work()
        if i > 1:  # the first two warm up
            seconds.append(now(device) - start)
    return statistics.median(seconds)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    lines: dict[str, Iterable[tuple[float, float]]]


def plot(path: Path, panels: list[Panel]) -> None:
    """Readable in grey; left out where there is no matplotlib, as the numbers are in the JSON file beside it."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ImportError:
        return
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    styles = ["o-", "s--", "^-.", "D:", "v-", "P--", "X-."]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for (label, points), style in zip(panel.lines.items(), styles * len(panel.lines), strict=False):
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, xscale="log", yscale="log")
        places = sorted({x for points in panel.lines.values() for x, _ in points})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.legend(fontsize="small")
    figure.savefig(path.with_suffix(".png"), dpi=110)
