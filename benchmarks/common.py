"""Shared by the benchmarks: arguments, models, prompts, ways to answer, peak memory, tables, plots and records."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import active_children, get_context
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import torch
from tqdm.auto import tqdm
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.new_folder import DRAFTER, TARGET
from wedlm.evaluation.provenance import conditions, write_report
from wedlm.evaluation.timing import interleaved_seconds
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.for_vllm.vllm_export import SPECULATIVE, export_for_vllm

sys.path.append(str(Path(__file__).parents[1]))  # for examples/, which is not installed
from examples.demo.tasks import KINDS, held_out_examples, training_example

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).with_name("peers.py")
STOCK, WEDLM, ADAPTER = (  # of SmolLM2-135M-Instruct; `make real-model` makes the first two
    Path(folder) for folder in ("build/smollm2-135m", "build/smollm2-135m-wedlm", "hub_card/smollm2-135m-adapter")
)
VLLM, VLLM_DRAFTING = "vLLM: token by token", "vLLM: our drafter"
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
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"tie_word_embeddings": True},
    "smollm2-135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    | {"vocab_size": 49_152, "num_key_value_heads": 3, "head_dim": 64, "mask_token_id": 49_151}
    | {"tie_word_embeddings": True},
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
    dtype = getattr(torch, given.dtype)
    if given.shape is None:
        return WeDLMForCausalLM.from_pretrained(given.model, dtype=dtype).to(DEVICE).eval()
    return random_model(given.shape, dtype)


def random_model(shape: str, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights in a shape; made on the GPU, where billions take seconds, if there is one."""
    torch.manual_seed(0)
    config = WeDLMConfig(**{**QWEN3, **SHAPES[shape]}, dtype=dtype)
    with torch.device(DEVICE):
        return WeDLMForCausalLM._from_config(config, dtype=dtype).eval()


def stock_model(model: PreTrainedModel) -> Qwen3ForCausalLM:
    """transformers' own class around the same weights, without a copy of them."""
    fields = model.config.to_dict()
    names = Qwen3Config().to_dict().keys() & fields.keys() - {"model_type", "architectures"}
    config = Qwen3Config(**{name: fields[name] for name in names})
    with torch.device("meta"):
        stock = Qwen3ForCausalLM._from_config(config, dtype=model.dtype)
    stock.load_state_dict(model.state_dict(), assign=True)
    stock.tie_weights()
    stock.model.rotary_emb = model.model.rotary_emb
    stock.config.mask_token_id = model.config.mask_token_id  # the same tokens are random, and trained by a LoRA
    return stock.eval()


def random_tokens(model: PreTrainedModel, batch_size: int, length: int) -> torch.Tensor:
    """`[batch_size, length]`, without MASK."""
    tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length))
    return tokens.where(tokens != model.config.mask_token_id, 0).to(model.device)


# --- Prompts ---


def question(number: int) -> str:
    """The held-out question with this number, in which the kinds of tasks take turns."""
    return held_out_examples(KINDS[number % len(KINDS)], number // len(KINDS) + 1)[-1].prompt


def chat(
    tokenizer: PreTrainedTokenizerBase, number: int, length: int, last: str | None = None
) -> list[dict[str, str]]:
    """A question, by default a held-out one, behind as many answered questions as fit into `length` tokens with it."""
    messages = [{"role": "user", "content": question(number) if last is None else last}]
    for position in count(1000 * number):
        longer = training_example(0, position).messages + messages
        if len(tokenizer.apply_chat_template(longer, add_generation_prompt=True)["input_ids"]) > length:
            return messages
        messages = longer


# --- Ways to answer ---


class Written(NamedTuple):
    """What a way has written for a batch: the new tokens of each prompt, the end token included."""

    tokens: list[list[int]]
    forwards: list[int] | None = None  # of each prompt, where the way counts them


Way = Callable[[list[list[int]], int], Written]  # from the ids of the prompts, and the largest number of new tokens


def ends_of(generation_config: GenerationConfig) -> list[int]:
    """The tokens at which generate() ends a text."""
    ends = generation_config.eos_token_id
    return ends if isinstance(ends, list) else [ends]


def up_to_end(tokens: list[int], ends: list[int]) -> list[int]:
    """up_to_end([5, 6, 2, 2], [2]) == [5, 6, 2]"""
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))]


def way_of(model: PreTrainedModel, **arguments: Any) -> Way:
    """generate() of a model with these arguments, greedily."""
    ends = ends_of(model.generation_config)

    def write(prompts: list[list[int]], new_tokens: int) -> Written:
        width = max(map(len, prompts))
        padded = [[ends[0]] * (width - len(ids)) + ids for ids in prompts]
        is_text = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        output = model.generate(
            torch.tensor(padded, device=model.device),
            attention_mask=torch.tensor(is_text, device=model.device),
            pad_token_id=ends[0],
            max_new_tokens=new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            **arguments,
        )
        rows = [up_to_end(row, ends) for row in output.sequences[:, width:].tolist()]
        return Written(rows, output.forwards.tolist() if "forwards" in output else None)

    return write


def in_batches(
    way: Way, ids: list[list[int]], new_tokens: int, batch_size: int, work: WorkFile, key: tuple[str, ...]
) -> list[tuple[list[int], int | None]]:
    """What a way writes for the prompts in batches; a batch that is in `work` is not asked again.

    Args:
        way (`Way`): The way.
        ids (`list[list[int]]`): The ids of the prompts.
        new_tokens (`int`): The most tokens of a text.
        batch_size (`int`): The number of prompts of a batch.
        work (`WorkFile`): Where the texts are kept.
        key (`tuple[str, ...]`): The name of the texts there; the progress bar shows all but its first part.

    Returns:
        `list[tuple]`: The tokens for each prompt, and the number of forwards where the way counts them.
    """
    texts = []
    for start in tqdm(range(0, len(ids), batch_size), unit=" batches", desc=", ".join(key[1:])):
        batch = ids[start : start + batch_size]
        place = (*key, digest_of(batch))
        if place not in work:
            work.add(place, way(batch, new_tokens))
        tokens, forwards = work[place]
        texts += zip(tokens, forwards or [None] * len(batch), strict=True)
    return texts


class PeerProcess:
    """Another library in an environment and a process of its own, which sleeps until it is asked.

    Args:
        environment (`Path`): The virtual environment with the library.
        library (`str`): A function of peers.py.
        arguments (`dict[str, Any]`): Its arguments.
        threads (`int`): The number of its threads.
        log (`Path`): The file for what it prints.
    """

    def __init__(self, environment: Path, library: str, arguments: dict[str, Any], threads: int, log: Path):
        self.library, self.log = library, log
        openmp = environment / "lib" / "libiomp5.so"  # vLLM wants it loaded first
        answers, answers_of_child = os.pipe()
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [environment / "bin" / "python", PEERS, library, str(answers_of_child), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[answers_of_child],
                env=os.environ
                | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
                | ({"LD_PRELOAD": str(openmp.resolve())} if openmp.exists() else {}),
                text=True,
            )
        os.close(answers_of_child)
        self.answers = open(answers)
        self.receive()

    def receive(self) -> dict[str, Any]:
        if line := self.answers.readline():
            return json.loads(line)
        raise RuntimeError(
            f"{self.library} has ended ({self.process.wait()}); repair its environment, or remove it to go on without "
            f"it:\n{self.log.read_text()[-3000:]}"
        )

    def write(self, prompts: list[list[int]], new_tokens: int) -> Written:
        print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}), file=self.process.stdin, flush=True)
        return Written(self.receive()["tokens"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.answers.close()


def version_in(environment: Path, module: str) -> str | None:
    """The version of the package with a module in an environment; None if there is no such environment."""
    python = environment / "bin" / "python"
    code = f"import importlib.metadata as m; print(m.version(m.packages_distributions()[{module!r}][0]))"
    return subprocess.check_output([python, "-c", code], text=True).strip() if python.exists() else None


@contextmanager
def vllm_ways(
    environment: Path, adapter: Path, dtype: str, longest: int, batch_size: int, threads: int, eager: bool
) -> Iterator[dict[str, Way]]:
    """vLLM without and with the drafter as ways by name.

    Args:
        environment (`Path`): The virtual environment with vLLM.
        adapter (`Path`): The draft adapter, which `wedlm export --vllm` exports with its base.
        dtype (`str`): The dtype of the weights.
        longest (`int`): The tokens of the longest prompt and its answer.
        batch_size (`int`): The most prompts at once.
        threads (`int`): The threads of vLLM.
        eager (`bool`): Whether vLLM compiles nothing.
    """
    # Without a cache of prefixes: a prompt is asked again in each round, and the other ways read it again too.
    fixed = {"dtype": dtype, "max_model_len": longest, "max_num_seqs": batch_size, "seed": 0}
    fixed |= {"enforce_eager": eager, "enable_prefix_caching": False}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        exported = Path(folder, "exported")
        export_for_vllm(str(adapter), exported)
        fixed["model"] = str(exported / TARGET)
        drafting = {"speculative_config": SPECULATIVE | {"model": str(exported / DRAFTER)}}
        ways = {}
        for name, arguments in ((VLLM, fixed), (VLLM_DRAFTING, fixed | drafting)):
            log = Path(folder, f"{len(ways)}.log")
            ways[name] = stack.enter_context(PeerProcess(environment, "vllm", arguments, threads, log)).write
        yield ways


# --- Bandwidth, products and memory ---


def bytes_per_second(device: torch.device | str, repeats: int) -> float:
    """The bandwidth of a reduction, which writes nothing."""
    device = torch.device(device)
    large = torch.ones((2**32 if device.type == "cuda" else 2**28) // 4, device=device)
    seconds = interleaved_seconds({"max": large.max}, device, repeats, num_warm_up=2)["max"]
    return 4 * large.numel() / statistics.median(seconds)


def flops_per_second(device: torch.device | str, repeats: int) -> float:
    """The floating-point operations that a large product of bfloat16 makes in a second."""
    device = torch.device(device)
    size = 8192 if device.type == "cuda" else 1024
    square = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    seconds = interleaved_seconds({"product": partial(torch.mm, square, square)}, device, repeats, num_warm_up=3)
    return 2 * size**3 / statistics.median(seconds["product"])


def peak_bytes() -> int:
    """The peak memory of this process; on a GPU the peak that torch allocated there. (VmHWM of /proc needs Linux.)"""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def in_fresh_process(function: Callable, *arguments: Any, seconds: float | None = None) -> Any:
    """What `function` returns in a new process, whose peak of memory nothing else has raised.

    If that takes longer than `seconds`, the process is killed with those that it has started, and None is returned.
    """
    context, others = get_context("spawn"), set(active_children())
    with ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=os.setsid) as process:
        future = process.submit(function, *arguments)
        try:
            return future.result(seconds)
        except TimeoutError:
            for child in set(active_children()) - others:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, SIGKILL)
                child.kill()  # if it leads no group yet
            return None


# --- Tables ---


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]], left: Collection[str]) -> str:
    """A table whose columns are aligned to the right, except for those named in `left`."""
    alignment = ["---" if name in left else "---:" for name in header]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (header, alignment, *lines))


def median_and_range(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def with_range(measured: dict[str, float], spec: str) -> str:
    """with_range({"median": 3.61, "min": 3.2, "max": 5.0}, ".1f") == "3.6 (3.2 - 5.0)" """
    median, low, high = (format(measured[name], spec) for name in ("median", "min", "max"))
    return f"{median} ({low} - {high})"


def why_lacking(result: Any) -> str | None:
    """Why a record has words in place of a number; None where it has one."""
    return next((result[name] for name in ("left_out", "failed") if isinstance(result, dict) and name in result), None)


# --- Plots and files ---


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    lines: dict[str, Sequence[tuple[float, float]]]  # points by label
    is_log: bool = True


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
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.legend(fontsize="small")
        if not panel.is_log:
            continue
        axes.set(xscale="log", yscale="log")
        places = sorted({x for points in panel.lines.values() for x, _ in points})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        low, high = axes.get_ylim()
        if high > 10 * low:  # where all labels between would stand on each other
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})


def save(
    out: Path, results: dict | list, device: torch.device | str, panels: Sequence[Panel] = (), **more: object
) -> None:
    """Writes the results with `more` and all they depend on into `out`, and the plot into a file of the same name."""
    write_report(out, results, device, **more)
    if panels:
        plot(out, list(panels))
    print(f"written to {out}")


def earlier_results(file: Path, about: dict[str, Any], device: torch.device | str | None) -> Any:
    """The results of a record that was begun with the same settings, and on the same device by the same versions.

    None if there is no such record. Its commit may be another one; if `device` is None, its device and versions too.
    """
    if not file.exists():
        return None
    record, wanted = json.loads(file.read_text(encoding="utf-8")), json.loads(json.dumps(about))
    if device is not None:
        here = conditions(device)
        wanted |= {name: here[name] for name in ("versions", "device")}
    return record["results"] if wanted.items() <= record.items() else None
