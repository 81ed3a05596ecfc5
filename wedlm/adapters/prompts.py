"""The prompts of `wedlm adapt` where the user gives none: questions and tasks of many kinds, all words our own."""

from hashlib import sha256
from random import Random
from typing import NamedTuple

from wedlm.adapters import (
    prompts_advice,
    prompts_code,
    prompts_counting,
    prompts_explanations,
    prompts_functions,
    prompts_lists,
    prompts_maths,
    prompts_reading,
    prompts_records,
    prompts_snippets,
    prompts_words,
    prompts_writing,
)

# Each function draws a key and a text. The key is the task without the wording of the request.
DRAW = {
    "explanation": prompts_explanations.draw,
    "code_written": prompts_code.draw,
    "list": prompts_lists.draw,
    "json": prompts_records.draw,
    "maths": prompts_maths.draw,
    "code_changed": prompts_snippets.draw_change,
    "writing": prompts_writing.draw,
    "extraction": prompts_reading.draw_extraction,
    "counting": prompts_counting.draw,
    "code_completed": prompts_functions.draw,
    "summary": prompts_reading.draw_summary,
    "advice": prompts_advice.draw,
    "code_explained": prompts_snippets.draw_explanation,
    "copying": prompts_reading.draw_copying,
    "words": prompts_words.draw,
}
KINDS = tuple(DRAW)
HELD_OUT_SHARE = 8  # one key in 8 is held out
MOST_OF_A_KIND = {"train": 800, "held out": 80}  # different texts that every kind can give, whatever the seed


class Prompt(NamedTuple):
    """A request to a chat assistant: Prompt(kind="explanation", text="Why is the sky blue?")"""

    kind: str
    text: str


def is_held_out(kind: str, key: str) -> bool:
    """Whether a task is held out: a hash decides, so no wording of a held-out task is ever a training prompt."""
    digest = sha256(f"{kind} {key}".encode()).digest()
    return int.from_bytes(digest[:8]) % HELD_OUT_SHARE == 0


def most_prompts(held_out: bool) -> int:
    return len(KINDS) * MOST_OF_A_KIND["held out" if held_out else "train"]


def make_prompts(num_prompts: int, seed: int = 0, held_out: bool = False) -> list[Prompt]:
    """Different prompts, the kinds in turns.

    Each kind can give 800 training prompts and 80 held-out prompts at least: 12,000 and 1,200 over all kinds. No
    held-out prompt is a training prompt, whatever the numbers and the seeds. It asks about another subject or
    function; where texts, code and numbers are filled into templates, about others in the same templates.

    Args:
        num_prompts (`int`): Number of prompts.
        seed (`int`, *optional*, defaults to 0):
            Equal seeds give equal prompts, and a longer list begins with the shorter one.
        held_out (`bool`, *optional*, defaults to `False`): Whether to draw held-out prompts, not training prompts.
    """
    most = most_prompts(held_out)
    if not 0 <= num_prompts <= most:
        raise ValueError(f"num_prompts={num_prompts} must be between 0 and {most}, the number of different prompts.")
    random = Random(seed)
    texts = {}  # text -> kind, in the order of drawing
    while len(texts) < num_prompts:
        kind = KINDS[len(texts) % len(KINDS)]
        key, text = DRAW[kind](random)
        if is_held_out(kind, key) == held_out:
            texts.setdefault(text, kind)
    return [Prompt(kind, text) for text, kind in texts.items()]
