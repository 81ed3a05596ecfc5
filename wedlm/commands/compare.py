"""`wedlm compare`: the same prompt through several decodings, side by side."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase, TextStreamer

from wedlm.commands.generate import Answer, answer, encode, load, read_prompt, seed
from wedlm.commands.settings import Settings
from wedlm.generation.support import DECODINGS

BASELINE = "autoregressive"
PIPE_WIDTH = 200  # a table in a file is not to be broken into lines


class Watcher(TextStreamer):
    """Tells all of the text so far, whenever there is more of it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.text, self.show = "", show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        self.show(self.text)


def chosen_decodings(settings: Settings) -> list[str]:
    """The baseline, and the one that was asked for or else all but blockwise, which is there for the paper's sake."""
    others = [settings.decoding] if settings.decoding else [name for name in DECODINGS if name != "blockwise"]
    return list(dict.fromkeys([BASELINE, *others]))


@dataclass
class Board:
    """A column for each decoding, on a terminal redrawn whenever one of them grows."""

    live: Live
    texts: dict[str, str]
    answers: dict[str, Answer] = field(default_factory=dict)

    def show(self, decoding: str, text: str) -> None:
        self.texts[decoding] = text
        if self.live.console.is_terminal:
            self.live.update(columns(self.texts, self.answers), refresh=True)


def compare(prompts: list[str], settings: Settings, raw: bool) -> None:
    prompts = [read_prompt(prompt) for prompt in prompts]
    if settings.seed is None:
        settings = replace(settings, seed=0)  # every run is to draw the same
    model, tokenizer = load(settings)
    all_ids = [encode(model, tokenizer, prompt, raw) for prompt in prompts]  # a refusal comes before any output
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH

    def run(ids: list[int], decoding: str, board: Board) -> Answer:
        """Twice: the first time is seen and warms up, the second is timed and nobody watches."""
        chosen = replace(settings, decoding=decoding)
        seed(chosen)
        answer(model, tokenizer, ids, chosen, Watcher(tokenizer, partial(board.show, decoding)))
        seed(chosen)
        return answer(model, tokenizer, ids, chosen)

    for prompt, ids in zip(prompts, all_ids, strict=True):
        console.print(Text(f"> {prompt}"), soft_wrap=True)
        with Live(console=console, auto_refresh=False) as live:
            board = Board(live, dict.fromkeys(chosen_decodings(settings), ""))
            for decoding in board.texts:
                board.answers[decoding] = run(ids, decoding, board)
                board.show(decoding, board.answers[decoding].text)
        if not console.is_terminal:
            for names, text in grouped(board.answers):
                console.print(Text(f"{names}:\n{text}"), soft_wrap=True)
        console.print(table(board.answers))
        for decoding, got in board.answers.items():
            if got.text != board.answers[BASELINE].text:
                parted = difference(board.answers[BASELINE].text, got.text)
                console.print(Text(f"{decoding} differs {parted}"), soft_wrap=True)


def columns(texts: dict[str, str], answers: dict[str, Answer]) -> Table:
    grid = Table.grid(expand=True)
    for _ in texts:
        grid.add_column(ratio=1)
    grid.add_row(
        *(
            Panel(
                Text(text),
                title=decoding,
                subtitle=f"{answers[decoding].seconds:.2f} s" if decoding in answers else None,
                border_style="green" if decoding in answers else "dim",
            )
            for decoding, text in texts.items()
        )
    )
    return grid


def grouped(answers: dict[str, Answer]) -> list[tuple[str, str]]:
    """Each text once, with the decodings that wrote it."""
    names: dict[str, list[str]] = {}
    for decoding, got in answers.items():
        names.setdefault(got.text, []).append(decoding)
    return [(", ".join(decodings), text) for text, decodings in names.items()]


def table(answers: dict[str, Answer]) -> Table:
    result = Table()
    result.add_column("decoding", no_wrap=True)
    for name in ("seconds", "forwards", "tokens", "tokens/\nforward", "tokens/\nsecond"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("text", no_wrap=True)
    for decoding, got in answers.items():
        result.add_row(
            decoding,
            f"{got.seconds:.3f}",
            f"{got.forwards}",
            f"{got.tokens}",
            f"{got.tokens_per_forward:.2f}",
            f"{got.tokens / got.seconds:.1f}",
            "" if decoding == BASELINE else "same" if got.text == answers[BASELINE].text else "differs",
        )
    return result


def difference(expected: str, got: str) -> str:
    """The words with which two texts part."""
    i = len(os.path.commonprefix([expected, got]))
    return f"from character {i + 1} on: {word_at(got, i)} for {word_at(expected, i)}"


def word_at(text: str, i: int) -> str:
    word = re.search(r"\S{0,20}\Z", text[:i])[0] + re.match(r"\s*\S{0,20}", text[i:])[0]
    return repr(word) if word else "the end"
