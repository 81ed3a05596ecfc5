"""`wedlm compare`: the same prompt through several decodings, side by side."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from wedlm.checkpoints.prompt_ids import encode
from wedlm.commands.answering import Answer, AnswerStreamer, answer, load, seed
from wedlm.commands.command import table_console
from wedlm.commands.shared_options import GenerationOptions
from wedlm.evaluation.decodings import BASELINE
from wedlm.generation.model_kind import decodings_of


def compare(prompts: list[str], options: GenerationOptions, raw: bool) -> None:
    """Answers each prompt by several decodings, and prints their texts and counts."""
    if options.seed is None and options.temperature:
        options = replace(options, seed=0)  # so that every decoding draws the same
    model, tokenizer = load(options)
    # Blockwise decoding is an ablation of the paper, compared only by name.
    others = [options.decoding] if options.decoding else [name for name in decodings_of(model) if name != "blockwise"]
    decodings = dict.fromkeys([BASELINE, *others])
    all_ids = [encode(model, tokenizer, prompt, raw) for prompt in prompts]  # refusals come before any output
    console = table_console()

    def run(ids: list[int], decoding: str, show: Callable[[str], None]) -> Answer:
        """Generates twice: the first run warms up and is shown, the second is timed and has no streamer."""
        chosen = options.with_decoding(decoding)
        seed(chosen)
        answer(model, tokenizer, ids, chosen, AnswerStreamer(tokenizer, show))
        seed(chosen)
        return answer(model, tokenizer, ids, chosen)

    for prompt, ids in zip(prompts, all_ids, strict=True):
        console.print(Text(f"> {prompt}"), soft_wrap=True)
        texts, answers = dict.fromkeys(decodings, ""), {}
        with Live(console=console, auto_refresh=False) as live:

            def show(decoding: str, text: str, live=live, texts=texts, answers=answers) -> None:
                texts[decoding] = text
                if console.is_terminal:
                    live.update(columns(texts, answers), refresh=True)

            for decoding in decodings:
                answers[decoding] = run(ids, decoding, partial(show, decoding))
                show(decoding, answers[decoding].text)
        print_answers(console, answers)


def print_answers(console: Console, answers: dict[str, Answer]) -> None:
    """Prints the texts, unless a terminal has shown them, the table, and where texts differ from the baseline's."""
    if not console.is_terminal:
        for names, text in grouped(answers):
            console.print(Text(f"{names}:\n{text}"), soft_wrap=True)
    console.print(table(answers))
    baseline = answers[BASELINE].text
    for decoding, got in answers.items():
        if got.text != baseline:
            console.print(Text(f"{decoding} differs {difference(baseline, got.text)}"), soft_wrap=True)


def columns(texts: dict[str, str], answers: dict[str, Answer]) -> Table:
    """The texts so far side by side, in a green frame where they are complete."""
    panels = [
        Panel(Text(text), title=name, subtitle=f"{answers[name].seconds:.2f} s", border_style="green")
        if name in answers
        else Panel(Text(text), title=name, border_style="dim")
        for name, text in texts.items()
    ]
    grid = Table.grid(*(Column(ratio=1) for _ in panels), expand=True)
    grid.add_row(*panels)
    return grid


def grouped(answers: dict[str, Answer]) -> list[tuple[str, str]]:
    """Each text once, behind the names of the decodings that wrote it."""
    names: dict[str, list[str]] = {}
    for decoding, got in answers.items():
        names.setdefault(got.text, []).append(decoding)
    return [(", ".join(decodings), text) for text, decodings in names.items()]


def table(answers: dict[str, Answer]) -> Table:
    result = Table(Column("decoding", no_wrap=True))
    for name in ("seconds", "forwards", "tokens", "tokens/\nforward", "tokens/\nsecond"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("text", no_wrap=True)
    for decoding, got in answers.items():
        result.add_row(
            decoding,
            f"{got.seconds:.3f}",
            f"{got.forwards}",
            f"{got.tokens}",
            f"{got.tokens / got.forwards:.2f}",
            f"{got.tokens / got.seconds:.1f}",
            "" if decoding == BASELINE else "same" if got.text == answers[BASELINE].text else "differs",
        )
    return result


def difference(expected: str, got: str) -> str:
    """The first place where two texts differ, with the words there."""
    i = len(os.path.commonprefix([expected, got]))
    return f"from character {i + 1} on: {word_at(got, i)} for {word_at(expected, i)}"


def word_at(text: str, i: int) -> str:
    word = re.search(r"\S{0,20}\Z", text[:i])[0] + re.match(r"\s*\S{0,20}", text[i:])[0]
    return repr(word) if word else "the end"
