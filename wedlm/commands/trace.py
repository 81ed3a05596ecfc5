"""`wedlm trace`: a line for each forward, and a page that plays the decoding back."""

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.generation import BaseStreamer

from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.commands.answering import Answer, answer, load, seed
from wedlm.commands.options import GenerationOptions

STYLES = ("bold green", "green", "cyan", "blue")  # of filled slots, by age in forwards; the last is for all older ones
PLACE = "{{trace}}"  # in trace_page.html


class Slot(NamedTuple):
    text: str
    filled_in: int | None  # the forward, counted from 1; None if the slot is open and the text a guess


class Step(NamedTuple):
    """One forward: the tokens that it made final, and the window behind them."""

    new: list[Slot]
    window: list[Slot]
    num_accepted: int  # how many of `new`, from the first on, are drafts of the forward before
    refuted: str | None  # the first draft that differs from the token in its place


class Tracer(BaseStreamer):
    """A streamer that records every forward of `generate()` on one row, and calls `show` with each."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, judges_drafts: bool, show: Callable[[int, Step], None]):
        self.tokenizer, self.judges_drafts, self.show = tokenizer, judges_drafts, show
        self.prompt_is_read = False
        self.ids: list[int] = []  # all final tokens
        self.text = ""  # the final text, up to the last whole character
        self.new: list[int] | None = None  # final tokens of the forward that is going on
        self.filled_in: dict[int, int] = {}  # forward by slot
        self.guesses: list[int] = []  # the window of the forward before
        self.steps: list[Step] = []

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_is_read:
            self.prompt_is_read = True
            return
        if self.new is not None:  # autoregressive decoding calls put() only, once per forward
            self.close([], [])
        self.new = value.tolist()

    def put_window(self, tokens: torch.Tensor, filled: torch.Tensor) -> None:
        self.close(tokens.tolist(), filled.tolist())

    def end(self) -> None:
        if self.new is not None:
            self.close([], [])

    def close(self, window: list[int], filled: list[bool]) -> None:
        """Records the forward that is going on."""
        new, self.new, forward = self.new or [], None, len(self.steps) + 1
        slots = []
        for token in new:
            slots.append(Slot(self.next_text(token), self.filled_in.setdefault(len(self.ids) - 1, forward)))
        first = len(self.ids)
        for i, (token, is_filled) in enumerate(zip(window, filled, strict=True), start=first):
            slots.append(
                Slot(self.tokenizer.decode([token]), self.filled_in.setdefault(i, forward) if is_filled else None)
            )
        # (Only the last new token can differ from its draft, and there may be no draft for it.)
        judged = list(zip(self.guesses, new, strict=False)) if self.judges_drafts else []
        num_accepted = sum(guess == token for guess, token in judged)
        refuted = self.tokenizer.decode([self.guesses[num_accepted]]) if num_accepted < len(judged) else None
        self.guesses = window
        self.steps.append(Step(slots[: len(new)], slots[len(new) :], num_accepted, refuted))
        self.show(forward, self.steps[-1])

    def next_text(self, token: int) -> str:
        """The text that a token adds; a character of several tokens is added by the last of them."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        before, self.text = self.text, text
        return text[len(before) :]


def line(forward: int, step: Step, judges_drafts: bool) -> Text:
    """The new text, a bar, and the window, where an open slot is a dot or the draft that was put there."""
    shown = Text(f"{forward:4}  ")
    for i, slot in enumerate(step.new):
        shown.append(visible(slot.text), "green" if i < step.num_accepted else style(forward, slot))
    shown.append(" │ ", "dim")
    for slot in step.window:
        if slot.filled_in is not None:
            shown.append(visible(slot.text), style(forward, slot))
        else:
            shown.append(visible(slot.text) if judges_drafts else "·", "dim")
    if judges_drafts and (step.num_accepted or step.refuted is not None):
        shown.append(f"  [{step.num_accepted} accepted", "dim")
        if step.refuted is not None:
            shown.append(", refuted: ", "dim").append(visible(step.refuted), "red strike")
        shown.append("]", "dim")
    return shown


def style(forward: int, slot: Slot) -> str:
    return STYLES[min(forward - slot.filled_in, len(STYLES) - 1)]


def visible(text: str) -> str:
    """The text on one line, with escapes for characters that a terminal would act on."""
    text = text.replace("\n", "⏎")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def page(prompt: str, decoding: str, steps: list[Step], got: Answer) -> str:
    """A page in one file. Generated text cannot become markup, as each < of its JSON is escaped."""
    recorded = {
        "prompt": prompt,
        "decoding": decoding,
        "tokens": got.tokens,
        "forwards": got.forwards,
        "steps": [
            {
                **step._asdict(),
                "new": [slot._asdict() for slot in step.new],
                "window": [slot._asdict() for slot in step.window],
            }
            for step in steps
        ],
    }
    template = (files("wedlm.commands") / "trace_page.html").read_text(encoding="utf-8")
    return template.replace(PLACE, json.dumps(recorded).replace("<", "\\u003c"))


def trace(prompt: str, options: GenerationOptions, raw: bool, html: Path | None) -> None:
    """Prints a line per forward on standard output, the counts and the place of the page on standard error."""
    model, tokenizer = load(options)
    ids = encode(model, tokenizer, prompt, raw)
    decoding = options.decoding or model.generation_config.decoding
    judges_drafts = decoding == "verified"
    console = Console(highlight=False)

    def show(forward: int, step: Step) -> None:
        console.print(line(forward, step, judges_drafts), soft_wrap=True)

    seed(options)
    tracer = Tracer(tokenizer, judges_drafts, show)
    got = answer(model, tokenizer, ids, options, tracer)
    print(got.summary(), file=sys.stderr)
    if html is not None:
        write_whole(html, page(prompt, decoding, tracer.steps, got))
        print(f"Written to {html}.", file=sys.stderr)
