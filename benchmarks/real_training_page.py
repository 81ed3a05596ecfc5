"""The section of docs/EVIDENCE.md about training a real model, and its plot, from the results of real_training.py."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import RESULTS, markdown
from real_training_measure import CAREFUL, CAREFUL_THRESHOLD, STREAMING, VERIFIED

from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import commit_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = RESULTS / "real_training.json"
TITLE = "## A real model, trained"
PLOT = "real_training.png"
NAMES = {BASELINE: "token by token", STREAMING: "streaming", CAREFUL: CAREFUL, VERIFIED: "verified"}
STREAMED = {STREAMING: "the paper's threshold", CAREFUL: f"a threshold of {CAREFUL_THRESHOLD}"}
DRAFTED = "verified, the base with its draft adapter"
STYLES = ("o-", "s--", "^-.", "D:")
HEAD = """\
What does the paper's training do to a model that writes token by token? SmolLM2-135M-Instruct is trained with the
dual-stream objective on its own greedy answers ([training](train.md)). `make real-training` repeats the section."""
TEXTS = """\
**The texts.** All models answer the held-out prompts greedily in float32, with a window of {window_size}. "Own" counts
the texts that the same model writes token by token, "base's" those that the base writes. NLL is what the base gives
the texts, in nats per token: a text that surprises it has a high one. A text that repeats itself has a low one, so the
table also has the share of 4-grams (4 tokens in a row) that their text has not had before."""
SMALL = """\
**What is small.** The {trained} saw {samples:,} answers {passes:.1f} times: {answer_tokens:,} tokens, with their
prompts {tokens:,}. It took {steps:,} steps of {rows_per_step} rows of at most {row_tokens} tokens in {precision}.
With the evaluations between them these were {hours:.1f} hours on {places}. The paper's models have
billions of parameters and saw a hundred billion tokens. There is one seed, and there are {prompts} held-out prompts
with texts of at most {new_tokens} tokens. So the numbers show what such a training begins with, and not what a long
one reaches."""
LOSSES = {
    "log": {"mlm_loss": ("masked tokens", "-"), "ar_loss": ("next tokens", "--")},
    "held_out_log": {"mlm_loss": ("masked tokens, held out", "o"), "ar_loss": ("next tokens, held out", "s")},
}


def tokens_per_forward(numbers: dict[str, Any]) -> float:
    return numbers["tokens"] / numbers["forwards"]


# --- Sentences ---


def moved(first: float, last: float) -> str:
    """moved(1.5, 2) == "rises from 1.50 to 2.00" """
    one, other = f"{first:.2f}", f"{last:.2f}"
    if one == other:
        return f"stays at {one}"
    return f"{'rises' if last > first else 'falls'} from {one} to {other}"


def of_texts(numbers: dict[str, Any]) -> str:
    return (
        f"The base gives these texts {numbers['base_nll']:.2f} nats per token, and {numbers['distinct_4_grams']:.0%} "
        "of their 4-grams are new."
    )


def of_streaming(results: dict[str, Any], way: str, title: str) -> str:
    numbers = results["moments"][-1]["ways"][way]
    return (
        f"- Streaming with {title} fills {tokens_per_forward(numbers):.2f} tokens per forward. "
        f"{numbers['same_as_own']} of {results['prompts']} texts are those that the model writes token by token. "
        f"{of_texts(numbers)}"
    )


def of_verified(results: dict[str, Any]) -> str:
    first, last = (results["moments"][place]["ways"][VERIFIED] for place in (0, -1))
    adapter, prompts = results["adapter"], results["prompts"]
    one, other = (f"{tokens_per_forward(each):.2f}" for each in (last, adapter))
    beside = "as many as" if one == other else "more than" if float(one) > float(other) else "fewer than"
    return (
        f"- Verified decoding fills {one} tokens per forward, {beside} the {other} of the base with its draft "
        f"adapter; before the training it fills {tokens_per_forward(first):.2f}. {last['same_as_own']} of {prompts} "
        "texts are those that the model writes token by token."
    )


def of_price(results: dict[str, Any]) -> str:
    first, last, prompts = results["moments"][0], results["moments"][-1], results["prompts"]
    before, after = first["perplexity"], last["perplexity"]
    own, of_base = last["ways"][BASELINE], first["ways"][BASELINE]
    moves = " and ".join(f"{moved(before[name], after[name])} on {name}" for name in before)
    return (
        f"- Token by token, the model's perplexity {moves}. {own['same_as_base']} of {prompts} texts are still the "
        f"base's. {of_texts(own)} The base gives its own texts {of_base['base_nll']:.2f}, and "
        f"{of_base['distinct_4_grams']:.0%} of their 4-grams are new. The draft adapter acts in MASK positions only, "
        f"so it changes no perplexity; with it {results['adapter']['same_as_base']} of {prompts} texts are the base's."
    )


def answer(results: dict[str, Any]) -> str:
    streamed = (of_streaming(results, way, title) for way, title in STREAMED.items())
    return "\n".join((*streamed, of_verified(results), of_price(results)))


def small(report: dict[str, Any]) -> str:
    rank = report["lora_rank"]
    trained = f"LoRA of rank {rank}" if rank else "whole model"
    precision = "bfloat16, with weights in float32" if report["bf16"] else "float32"
    numbers = {**report, **report["results"], **report["results"]["training"]}
    places = ", then ".join(
        f"{origin['device']} ({origin['threads']} threads, {commit_text(origin['commit'])})"
        for origin in numbers["origins"]
    )
    return SMALL.format(**numbers, trained=trained, precision=precision, places=places)


# --- Tables ---


def price_table(results: dict[str, Any]) -> str:
    losses = {entry["step"]: entry for entry in results["held_out_log"]}
    lines = [
        [
            moment["step"],
            *(f"{losses[moment['step']][name]:.3f}" for name in LOSSES["held_out_log"]),
            *(f"{value:.3f}" for value in moment["perplexity"].values()),
        ]
        for moment in results["moments"]
    ]
    titles = [f"loss, {title}" for title, _ in LOSSES["held_out_log"].values()]
    titles += [f"perplexity on {name}" for name in results["moments"][0]["perplexity"]]
    return markdown(["step", *titles], lines, left=set())


def texts_table(results: dict[str, Any]) -> str:
    lines = [
        [
            moment["step"],
            NAMES[way],
            f"{tokens_per_forward(numbers):.2f}",
            numbers["same_as_own"],
            numbers["same_as_base"],
            f"{numbers['base_nll']:.2f}",
            f"{numbers['distinct_4_grams']:.0%}",
        ]
        for moment in results["moments"]
        for way, numbers in moment["ways"].items()
    ]
    adapter = results["adapter"]
    same, new = adapter["same_as_base"], f"{adapter['distinct_4_grams']:.0%}"
    lines.append(["", DRAFTED, f"{tokens_per_forward(adapter):.2f}", same, same, "", new])
    header = ["step", "decoding", "tokens per forward", "own", "base's", "NLL", "new 4-grams"]
    return markdown(header, lines, left={"decoding"})


def summary(report: dict[str, Any]) -> str:
    """All that is measured, in words and tables."""
    results = report["results"]
    return "\n\n".join((answer(results), price_table(results), texts_table(results), small(report)))


def section(report: dict[str, Any], conditions: str) -> str:
    """The section.

    Args:
        report (`dict[str, Any]`): What real_training.py has written.
        conditions (`str`): The device, the versions and the commit in words.
    """
    results = report["results"]
    return f"""\
{TITLE}

{HEAD}

**Here,** after the last step:

{answer(results)}

![Losses, tokens per forward and perplexity over the steps](evidence/{PLOT})

{price_table(results)}

{TEXTS.format(**report)}

{texts_table(results)}

{small(report)}

`{report["command"]}`, in [{FILE.name}](../benchmarks/results/{FILE.name}): {conditions}.
"""


# --- Plots ---


def draw(results: dict[str, Any], folder: Path) -> None:
    """Writes the plot, readable in grey: the losses, the tokens per forward, and what becomes of the base."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    moments = results["moments"]
    steps = [moment["step"] for moment in moments]
    figure = Figure(figsize=(15, 5), layout="constrained")
    loss, speed, price = figure.subplots(1, 3)
    for log, titles in LOSSES.items():
        for name, (title, style) in titles.items():
            points = [(entry["step"], entry[name]) for entry in results[log]]
            loss.plot(*zip(*points, strict=True), style, label=title, color="black", fillstyle="none", linewidth=1)
    loss.set(ylabel="loss (nats per token)")
    draw_lines(
        speed,
        steps,
        {NAMES[way]: [tokens_per_forward(moment["ways"][way]) for moment in moments] for way in (*STREAMED, VERIFIED)},
    )
    speed.axhline(tokens_per_forward(results["adapter"]), color="0.5", linewidth=1, label=DRAFTED)
    speed.set(ylabel="tokens per forward")
    first = moments[0]["perplexity"]
    draw_lines(
        price,
        steps,
        {f"on {name}": [moment["perplexity"][name] / first[name] for moment in moments] for name in first},
    )
    price.set(ylabel="perplexity, times the base's")
    for axes in (loss, speed, price):
        axes.set(xlabel="optimizer step")
        axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0, 1))  # above the lines, not on them
    figure.savefig(folder / PLOT, dpi=100, metadata={"Software": None})


def draw_lines(axes: "Axes", steps: list[int], lines: dict[str, list[float]]) -> None:
    for (label, values), style in zip(lines.items(), STYLES, strict=False):
        axes.plot(steps, values, style, label=label, color="black", fillstyle="none", linewidth=1)
