"""Finds the characters of a rendered conversation that the assistant has to write."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from wedlm.checkpoints.limited_process import Refused
from wedlm.checkpoints.rendering import render, render_with_spans
from wedlm.training.run_errors import TrainingError

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
PRIVATE_CHARACTERS = range(0xE000, 0xF900)
REMEDY = "put {% generation %} marks into the chat template, or use loss_on='last'"


class Conversation(NamedTuple):
    """A rendered conversation."""

    text: str
    spans: list[tuple[int, int]]  # [start, end) of the characters that have loss
    num_rewritten: int  # turns that the template writes differently when other turns follow


class Renderer(NamedTuple):
    """Renders messages with a tokenizer's chat template."""

    tokenizer: PreTrainedTokenizerBase
    tools: list | None
    where: str  # the file and line of the record, for error messages

    def __call__(self, messages: Sequence[dict], add_generation_prompt: bool = False) -> str:
        return self.run(render, messages, tools=self.tools, add_generation_prompt=add_generation_prompt)

    def marked_spans(self, messages: Sequence[dict]) -> list[tuple[int, int]] | None:
        """Returns the spans inside the template's {% generation %} marks, or None if it has none."""
        template = self.tokenizer.get_chat_template(tools=self.tools)
        if not GENERATION_MARK.search(template):
            return None
        # apply_chat_template's own mask of tokens runs to the end of the text if a character belongs to no token.
        _, spans = self.run(render_with_spans, messages, tools=self.tools)
        return [(start, end) for start, end in spans if start < end]

    def run(self, function: Callable, messages: Sequence[dict], **arguments: Any) -> Any:
        """Calls a function that runs the template, and turns its errors into a TrainingError."""
        try:
            return function(self.tokenizer, messages, **arguments)
        except Refused as error:
            raise TrainingError(
                f"{self.where}: the chat template refuses the messages ({error}); change the one or the other."
            ) from error


def render_conversation(messages: Sequence[dict], first_turn: int, render: Renderer) -> Conversation:
    """Renders a conversation and finds its assistant turns.

    A turn is the text that has to follow the generation prompt, including the token that ends the turn. Its span comes
    from the template's {% generation %} marks. Without marks, the turn lies between the rendered messages before it,
    with the generation prompt, and the rendered messages up to it.
    """
    text = render(messages)
    marked = render.marked_spans(messages)
    if marked is not None:
        text_before = render(messages[:first_turn]) if first_turn else ""
        if not text.startswith(text_before):
            raise TrainingError(
                f"{render.where}: the chat template writes the text before messages[{first_turn}] differently when no "
                "message follows; use a template in which later messages do not change earlier ones."
            )
        return Conversation(text, [span for span in marked if span[0] >= len(text_before)], 0)
    spans, num_rewritten = [], 0
    for turn in range(first_turn, len(messages)):
        if messages[turn]["role"] != "assistant":
            continue
        start = start_of_turn(messages, turn, text, render)
        up_to_turn = render(messages[: turn + 1])
        end = len(up_to_turn)
        if not text.startswith(up_to_turn):
            end = end_of_rewritten_turn(messages, turn, text, render)
            num_rewritten += 1
        end = len(text[:end].rstrip())  # a newline after the end token is for nobody to predict
        if end <= start:
            raise TrainingError(f"{render.where}: the chat template writes nothing for messages[{turn}]; {REMEDY}.")
        spans.append((start, end))
    return Conversation(text, spans, num_rewritten)


def start_of_turn(messages: Sequence[dict], turn: int, text: str, render: Renderer) -> int:
    if turn == 0:
        raise TrainingError(
            f"{render.where}: messages[0] is an assistant turn with nothing to answer; put a system or user message "
            "before it, or use loss_on='last'."
        )
    prompt = render(messages[:turn], add_generation_prompt=True)
    if not text.startswith(prompt):
        raise TrainingError(
            f"{render.where}: the chat template does not write messages[{turn}] after the generation prompt that a "
            f"model would answer there; {REMEDY}."
        )
    return len(prompt)


def end_of_rewritten_turn(messages: Sequence[dict], turn: int, text: str, render: Renderer) -> int:
    """Returns where a turn ends that changes when others follow it, as Qwen3's template drops thinking.

    A mark at the end of the turn's content shows the text that the template writes after the content. If the turn is
    the last, that is the end of the turn alone; if others follow, it is the end of the turn and the rest of the text.
    """
    mark = next(chr(code) for code in PRIVATE_CHARACTERS if chr(code) not in text)
    marked = list(messages)
    marked[turn] = {**messages[turn], "content": messages[turn].get("content", "") + mark}
    _, *after_last = render(marked[: turn + 1]).split(mark)
    _, *after = render(marked).split(mark)
    if len(after_last) == len(after) == 1 and text.endswith(after[0]) and after[0].startswith(after_last[0]):
        return len(text) - len(after[0]) + len(after_last[0])
    raise TrainingError(f"{render.where}: the chat template does not show where messages[{turn}] ends; {REMEDY}.")


def tokenize_with_loss(
    text: str, spans: list[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Tokenizes a text; a token has loss if one of its characters lies in a span."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    has_loss = [
        any(start < span_end and span_start < end for span_start, span_end in spans)
        for start, end in encoding["offset_mapping"]
    ]
    return encoding["input_ids"], has_loss
