"""`wedlm trace`: what each forward filled, a line each, and as a page that plays the decoding back."""

import json
import os
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

from wedlm.commands.generate import Answer, answer, encode, load, read_prompt, seed, told
from wedlm.commands.settings import Settings

STYLES = ("bold green", "green", "cyan", "blue")  # of a filled slot, by its age in forwards; older ones are the last
PLACE = "{{trace}}"  # in the page


class Slot(NamedTuple):
    text: str
    filled_in: int | None  # the forward, from 1; None: it is open, and the text a guess


class Step(NamedTuple):
    """One forward: what became final in it, and the window that it left."""

    new: list[Slot]
    window: list[Slot]
    num_accepted: int  # of `new`, from the first: drafts of the forward before that came true
    refuted: str | None  # a draft that did not


class Tracer(BaseStreamer):
    """Listens to generate() on one row, and tells every step."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, judges_drafts: bool, show: Callable[[int, Step], None]):
        self.tokenizer, self.judges_drafts, self.show = tokenizer, judges_drafts, show
        self.prompt_is_read = False
        self.ids: list[int] = []  # final
        self.text = ""  # of these, as far as they make whole characters
        self.new: list[int] | None = None  # of the forward that is going on
        self.filled_in: dict[int, int] = {}  # by slot
        self.guesses: list[int] = []  # of the forward before
        self.steps: list[Step] = []

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_is_read:
            self.prompt_is_read = True
            return
        if self.new is not None:  # token by token nobody tells of a window
            self.close([], [])
        self.new = value.tolist()

    def put_window(self, tokens: torch.Tensor, filled: torch.Tensor) -> None:
        self.close(tokens.tolist(), filled.tolist())

    def end(self) -> None:
        if self.new is not None:
            self.close([], [])

    def close(self, window: list[int], filled: list[bool]) -> None:
        """The forward that is going on ends."""
        new, self.new, forward = self.new or [], None, len(self.steps) + 1
        slots = []
        for token in new:
            slots.append(Slot(self.next_text(token), self.filled_in.setdefault(len(self.ids) - 1, forward)))
        first = len(self.ids)
        for i, (token, is_filled) in enumerate(zip(window, filled, strict=True), start=first):
            slots.append(
                Slot(self.tokenizer.decode([token]), self.filled_in.setdefault(i, forward) if is_filled else None)
            )
        # (Only the last of the new tokens can differ from its draft, and there may be none for it.)
        judged = list(zip(self.guesses, new, strict=False)) if self.judges_drafts else []
        num_accepted = sum(guess == token for guess, token in judged)
        refuted = self.tokenizer.decode([self.guesses[num_accepted]]) if num_accepted < len(judged) else None
        self.guesses = window
        self.steps.append(Step(slots[: len(new)], slots[len(new) :], num_accepted, refuted))
        self.show(forward, self.steps[-1])

    def next_text(self, token: int) -> str:
        """What a token adds to the text; one within a character adds nothing, and its last one all of it."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        before, self.text = self.text, text
        return text[len(before) :]


def line(forward: int, step: Step, judges_drafts: bool) -> Text:
    """New text, a bar, the window; what is open is a dot, or the draft that was put there."""
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
    """On one line, and without what would act on a terminal."""
    text = text.replace("\n", "⏎")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def page(prompt: str, decoding: str, steps: list[Step], got: Answer) -> str:
    """One file that needs nothing else. Whatever was generated stays text: of the markup it can leave nothing."""
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


def check_writable(file: Path) -> None:
    """Before anything is computed."""
    where = file.resolve().parent if is_ordinary(file) else file
    if file.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        raise ValueError(
            f"--html {file} cannot be written; give the name of a file in a folder that you may write to."
        )


def is_ordinary(file: Path) -> bool:
    """Or to be made; what is not, such as /dev/stdout, is written to and never replaced."""
    return file.is_file() or not file.exists()


def write_whole(file: Path, text: str) -> None:
    """All of it or nothing."""
    if not is_ordinary(file):
        file.write_text(text, encoding="utf-8")
        return
    file = file.resolve()  # or a link would be replaced
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def trace(prompt: str, settings: Settings, raw: bool, html: Path | None) -> None:
    """The steps on standard output, the counts and where the page is on standard error."""
    prompt = read_prompt(prompt)
    if html is not None:
        check_writable(html)
    model, tokenizer = load(settings)
    ids = encode(model, tokenizer, prompt, raw)
    decoding = settings.decoding or model.generation_config.decoding
    judges_drafts = decoding == "verified"
    console = Console(highlight=False)

    def show(forward: int, step: Step) -> None:
        console.print(line(forward, step, judges_drafts), soft_wrap=True)

    seed(settings)
    tracer = Tracer(tokenizer, judges_drafts, show)
    got = answer(model, tokenizer, ids, settings, tracer)
    print(told(got), file=sys.stderr)
    if html is not None:
        write_whole(html, page(prompt, decoding, tracer.steps, got))
        print(f"Written to {html}.", file=sys.stderr)
