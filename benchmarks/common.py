"""Shared by the benchmarks: arguments, models, random prompts, peak memory, tables, plots and files of results."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.provenance import write_report

sys.path.append(str(Path(__file__).parents[1]))  # for examples/, which is not installed
RESULTS = Path(__file__).parent / "results"
DECODINGS = ("autoregressive", "streaming", "verified", "blockwise")
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

# --- Arguments and models ---


def new_parser(description: str, name: str) -> argparse.ArgumentParser:
    """A parser with --out, by default the file results/`name`.json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json")
    return parser


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(DEMO_FOLDER), help="a checkpoint; the demo by default")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")


def model_of(given: argparse.Namespace) -> PreTrainedModel:
    """The checkpoint of --model, or random weights in the shape of --shape; on a GPU where there is one."""
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, given.dtype)
    if given.shape is None:
        return WeDLMForCausalLM.from_pretrained(given.model, dtype=dtype).to(device).eval()
    torch.manual_seed(0)
    config = WeDLMConfig(**{**QWEN3, **SHAPES[given.shape]}, dtype=dtype)
    with torch.device(device):
        return WeDLMForCausalLM._from_config(config, dtype=dtype).eval()


def tokenizer_of(given: argparse.Namespace) -> PreTrainedTokenizerBase | None:
    """The tokenizer of --model; random weights have none."""
    return AutoTokenizer.from_pretrained(given.model) if given.shape is None else None


def random_tokens(model: PreTrainedModel, batch_size: int, length: int) -> torch.Tensor:
    """`[batch_size, length]`, without MASK."""
    tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length))
    return tokens.where(tokens != model.config.mask_token_id, 0).to(model.device)


def load(
    folder: str | Path = DEMO_FOLDER, dtype: torch.dtype | str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a checkpoint, on the CPU."""
    return WeDLMForCausalLM.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)


# --- Memory ---


def peak_bytes() -> int:
    """The peak memory of this process; on a GPU the peak that torch allocated there. (VmHWM of /proc needs Linux.)"""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def in_fresh_process(function: Callable, *arguments: Any) -> Any:
    """What `function` returns in a new process, whose peak of memory nothing else has raised."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


# --- Tables ---


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]], left: Collection[str]) -> str:
    """A table whose columns are aligned to the right, except for those named in `left`."""
    alignment = ["---" if name in left else "---:" for name in header]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (header, alignment, *lines))


def with_range(measured: dict[str, float], spec: str) -> str:
    """with_range({"median": 3.61, "min": 3.2, "max": 5.0}, ".1f") == "3.6 (3.2 - 5.0)" """
    median, low, high = (format(measured[name], spec) for name in ("median", "min", "max"))
    return f"{median} ({low} - {high})"


# --- Plots and files ---


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    lines: dict[str, Iterable[tuple[float, float]]]  # points by label


def plot(path: Path, panels: list[Panel]) -> None:
    """Draws the panels side by side, readable in grey. Without matplotlib there is no plot."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullLocator
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
        low, high = axes.get_ylim()
        if high > 10 * low:  # where all labels between would stand on each other
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.legend(fontsize="small")
    figure.savefig(path.with_suffix(".png"), dpi=110)


def save(
    out: Path, results: dict | list, device: torch.device | str, panels: Sequence[Panel] = (), **more: object
) -> None:
    """Writes the results with `more` and all they depend on into `out`, and the plot into a file of the same name."""
    write_report(out, results, device, **more)
    if panels:
        plot(out, list(panels))
    print(f"written to {out}")
