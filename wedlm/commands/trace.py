"""`wedlm trace`: a line for each forward, and a page where the decoding races token by token decoding."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import BaseStreamer

from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.commands.answering import answer, load, seed
from wedlm.commands.shared_options import GenerationOptions
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import device_name
from wedlm.evaluation.timing import interleaved
from wedlm.fused.model import product_of

STYLES = ("bold green", "green", "cyan", "blue")  # of filled slots, by age in forwards; the last is for all older ones
PLACEHOLDER = "{{trace}}"  # in trace_page.html
NUM_ROUNDS = 3  # answers of each decoding that are timed for the page


class Forward(NamedTuple):
    """The ids that a forward made final, and the window behind them."""

    seconds: float  # from the start of the answer to the end of the forward
    new: list[int]
    window: list[int]
    filled: list[bool]  # by slot of the window


class Slot(NamedTuple):
    text: str
    filled_in: int | None  # the forward, counted from 1; None if the slot is open and the text a draft


class Step(NamedTuple):
    """What a forward did: the tokens that it made final, and the window behind them."""

    new: list[Slot]
    window: list[Slot]
    num_accepted: int  # how many of `new`, from the first on, are drafts of the forward before
    rejected: str | None  # the first draft that differs from the token in its place


class Run(NamedTuple):
    decoding: str
    steps: list[Step]
    seconds: list[float]  # by step, from the start of the answer to the end of the forward


class Recorder(BaseStreamer):
    """A streamer that keeps every forward of `generate()` on one row, and calls `show` with each.

    The text is made afterwards, by `Tracer`, where times count.
    """

    def __init__(self, show: Callable[[Forward], None] = lambda forward: None):
        self.show = show
        self.prompt_is_read = False
        self.forwards: list[Forward] = []
        self.current: Forward | None = None
        self.start = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_is_read:
            self.prompt_is_read = True
            return
        self.end()  # autoregressive decoding calls put() only, once per forward
        self.current = self.forward(new=value.tolist())

    def put_window(self, tokens: torch.Tensor, filled: torch.Tensor) -> None:
        current = self.current or self.forward(new=[])
        self.current = current._replace(window=tokens.tolist(), filled=filled.tolist())
        self.end()

    def end(self) -> None:
        if self.current is not None:
            self.forwards.append(self.current)
            self.current = None
            self.show(self.forwards[-1])

    def forward(self, new: list[int]) -> Forward:
        return Forward(time.perf_counter() - self.start, new, [], [])


class Tracer:
    """Turns the forwards of one answer into steps, with texts in place of ids.

    With `skip_special_tokens` the text of a special token in the window is empty. In the final text it always is.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, verifies_drafts: bool, skip_special_tokens: bool = False):
        self.tokenizer, self.verifies_drafts = tokenizer, verifies_drafts
        self.skip_special_tokens = skip_special_tokens
        self.ids: list[int] = []  # all final tokens
        self.text = ""  # the final text, up to the last whole character
        self.filled_in: dict[int, int] = {}  # forward by slot
        self.drafts: list[int] = []  # the window of the forward before
        self.steps: list[Step] = []

    def step(self, forward: Forward) -> Step:
        """The step of the next forward."""
        number = len(self.steps) + 1
        new = []
        for token in forward.new:
            new.append(Slot(self.next_text(token), self.filled_in.setdefault(len(self.ids) - 1, number)))
        window = []
        for i, (token, is_filled) in enumerate(zip(forward.window, forward.filled, strict=True), start=len(self.ids)):
            window.append(Slot(self.text_of(token), self.filled_in.setdefault(i, number) if is_filled else None))
        # (Only the last new token can differ from its draft, and there may be no draft for it.)
        verified = list(zip(self.drafts, forward.new, strict=False)) if self.verifies_drafts else []
        num_accepted = sum(draft == token for draft, token in verified)
        rejected = self.text_of(self.drafts[num_accepted]) if num_accepted < len(verified) else None
        self.drafts = forward.window
        self.steps.append(Step(new, window, num_accepted, rejected))
        return self.steps[-1]

    def text_of(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=self.skip_special_tokens)

    def next_text(self, token: int) -> str:
        """The text that a token adds; a character of several tokens is added by the last of them."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        before, self.text = self.text, text
        return text[len(before) :]


def line(forward: int, step: Step, verifies_drafts: bool) -> Text:
    """The new text, a bar, and the window, where an open slot is a dot or the draft that was put there."""
    shown = Text(f"{forward:4}  ")
    for i, slot in enumerate(step.new):
        shown.append(visible(slot.text), "green" if i < step.num_accepted else style(forward, slot))
    shown.append(" │ ", "dim")
    for slot in step.window:
        if slot.filled_in is not None:
            shown.append(visible(slot.text), style(forward, slot))
        else:
            shown.append(visible(slot.text) if verifies_drafts else "·", "dim")
    if verifies_drafts and (step.num_accepted or step.rejected is not None):
        shown.append(f"  [{step.num_accepted} accepted", "dim")
        if step.rejected is not None:
            shown.append(", rejected: ", "dim").append(visible(step.rejected), "red strike")
        shown.append("]", "dim")
    return shown


def style(forward: int, slot: Slot) -> str:
    return STYLES[min(forward - slot.filled_in, len(STYLES) - 1)]


def visible(text: str) -> str:
    """The text on one line, with escapes for characters that a terminal would act on."""
    text = text.replace("\n", "⏎")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def race(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    options: GenerationOptions,
    decoding: str,
) -> list[Run]:
    """Answers token by token and by `decoding`, interleaved, and returns the run of each with the median time.

    `decoding` has answered before, so only the other one needs a warm-up.
    """

    def record(decoding: str) -> list[Forward]:
        seed(options)
        recorder = Recorder()
        answer(model, tokenizer, ids, options.with_decoding(decoding), recorder)
        return recorder.forwards

    calls = {name: partial(record, name) for name in dict.fromkeys([BASELINE, decoding])}
    if decoding != BASELINE:
        calls[BASELINE]()
    recorded = {name: [] for name in calls}
    for each in interleaved(calls, model.device, NUM_ROUNDS, num_warm_up=0):
        recorded[each.name].append(each.result)
    runs = []
    for name, rounds in recorded.items():
        forwards = sorted(rounds, key=lambda forwards: forwards[-1].seconds)[NUM_ROUNDS // 2]
        tracer = Tracer(tokenizer, name == "verified", skip_special_tokens=True)
        steps = [tracer.step(forward) for forward in forwards]
        runs.append(Run(name, steps, [forward.seconds for forward in forwards]))
    return runs


def page(prompt: str, name: str, device: torch.device, runs: list[Run], is_fused: bool = False) -> str:
    """A page in one file. Generated text cannot become markup, as each < of its JSON is escaped."""
    data = {
        "prompt": prompt,
        "model": Path(name).resolve().name if Path(name).is_dir() else name,
        "fused": is_fused,
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "rounds": NUM_ROUNDS,
        "runs": [{"decoding": run.decoding, "steps": list(map(step_of_page, run.seconds, run.steps))} for run in runs],
    }
    template = (files("wedlm.commands") / "trace_page.html").read_text(encoding="utf-8")
    return template.replace(PLACEHOLDER, json.dumps(data).replace("<", "\\u003c"))


def step_of_page(seconds: float, step: Step) -> dict:
    return {
        **step._asdict(),
        "seconds": round(seconds, 6),
        "new": [slot._asdict() for slot in step.new],
        "window": [slot._asdict() for slot in step.window],
    }


def trace(prompt: str, options: GenerationOptions, raw: bool, html: Path | None) -> None:
    """Prints a line per forward on standard output, the counts and the place of the page on standard error."""
    if html is not None and options.seed is None and options.temperature:
        options = replace(options, seed=0)  # so that every run draws the same
    model, tokenizer = load(options)
    ids = encode(model, tokenizer, prompt, raw)
    decoding = options.decoding or model.generation_config.decoding
    verifies_drafts = decoding == "verified"
    console = Console(highlight=False)
    tracer = Tracer(tokenizer, verifies_drafts)

    def show(forward: Forward) -> None:
        step = tracer.step(forward)
        console.print(line(len(tracer.steps), step, verifies_drafts), soft_wrap=True)

    seed(options)
    got = answer(model, tokenizer, ids, options, Recorder(show))
    print(got.summary(), file=sys.stderr)
    if html is not None:
        runs = race(model, tokenizer, ids, options, decoding)
        write_whole(html, page(prompt, options.model, model.device, runs, product_of(model) is not None))
        print(f"Written to {html}.", file=sys.stderr)
