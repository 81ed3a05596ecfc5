"""Which characters of a rendered conversation the assistant has to write."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from wedlm.training.errors import TrainingError

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
PRIVATE_CHARACTERS = range(0xE000, 0xF900)
REMEDY = "put {% generation %} marks into the chat template, or use loss_on='last'"


class Conversation(NamedTuple):
    """A rendered conversation: its text, and the spans [start, end) of characters that have loss."""

    text: str
    spans: list[tuple[int, int]]
    num_rewritten: int  # turns that the template writes otherwise than when they are the last


class Renderer(NamedTuple):
    """A chat template with everything it is given but the messages."""

    tokenizer: PreTrainedTokenizerBase
    tools: list | None
    where: str

    def __call__(self, messages: Sequence[dict], add_generation_prompt: bool = False) -> str:
        return self.guarded(
            self.tokenizer.apply_chat_template,
            list(messages),
            tools=self.tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )

    def marked_spans(self, messages: Sequence[dict]) -> list[tuple[int, int]] | None:
        """The characters inside the template's {% generation %} marks, or None where it has none."""
        template = self.guarded(self.tokenizer.get_chat_template, tools=self.tools)
        if not GENERATION_MARK.search(template):
            return None
        # apply_chat_template's own token mask runs to the end of the text where a character belongs to no token.
        _, spans = self.guarded(
            render_jinja_template,
            conversations=[list(messages)],
            tools=self.tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        return [(start, end) for start, end in spans[0] if start < end]

    def guarded(self, function: Any, *args, **kwargs) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # a template is a program, and may fail in any way
            reason = " ".join(str(error).split()).rstrip(".")
            raise TrainingError(f"{self.where}: the chat template refuses the messages ({reason}).") from error


def render_conversation(messages: Sequence[dict], first_turn: int, render: Renderer) -> Conversation:
    """The conversation as the template writes it, with the spans of its assistant turns from `first_turn` on.

    A turn is what has to be written after the generation prompt, up to and including what ends the turn. Spans come
    from the template's {% generation %} marks, or else from rendering the messages in front of a turn, and those up
    to it.
    """
    text = render(messages)
    marked = render.marked_spans(messages)
    if marked is not None:
        in_front = render(messages[:first_turn]) if first_turn else ""
        if not text.startswith(in_front):
            raise TrainingError(
                f"{render.where}: the chat template writes what stands in front of messages[{first_turn}] otherwise "
                "when it stands alone; use a template in which later messages do not change earlier ones."
            )
        return Conversation(text, [span for span in marked if span[0] >= len(in_front)], 0)
    turns = [i for i in range(first_turn, len(messages)) if messages[i]["role"] == "assistant"]
    spans, num_rewritten = [], 0
    for turn in turns:
        start = start_of_turn(messages, turn, text, render)
        up_to_turn = render(messages[: turn + 1])
        if text.startswith(up_to_turn):
            end = len(up_to_turn)
        else:
            end = end_of_rewritten_turn(messages, turn, text, render)
            num_rewritten += 1
        end = len(text[:end].rstrip())  # what a template writes after the end token, a newline, is nobody's to predict
        if end <= start:
            raise TrainingError(f"{render.where}: the chat template writes nothing for messages[{turn}]; {REMEDY}.")
        spans.append((start, end))
    return Conversation(text, spans, num_rewritten)


def start_of_turn(messages: Sequence[dict], turn: int, text: str, render: Renderer) -> int:
    if turn == 0:
        raise TrainingError(
            f"{render.where}: messages[0] is an assistant turn with nothing to answer; put a system or user message "
            "in front of it, or use loss_on='last'."
        )
    prompt = render(messages[:turn], add_generation_prompt=True)
    if not text.startswith(prompt):
        raise TrainingError(
            f"{render.where}: the chat template does not write messages[{turn}] behind the generation prompt that a "
            f"model would answer there; {REMEDY}."
        )
    return len(prompt)


def end_of_rewritten_turn(messages: Sequence[dict], turn: int, text: str, render: Renderer) -> int:
    """The end of a turn that changes when others follow it (Qwen3 drops its thinking).

    A mark at the end of its content shows what the template writes behind the content: with the turn being the last,
    only what ends the turn; with others following, that and the rest of the text.
    """
    mark = next(chr(code) for code in PRIVATE_CHARACTERS if chr(code) not in text)
    marked = list(messages)
    marked[turn] = {**messages[turn], "content": messages[turn].get("content", "") + mark}
    _, *behind_alone = render(marked[: turn + 1]).split(mark)
    _, *behind = render(marked).split(mark)
    if len(behind_alone) == len(behind) == 1 and text.endswith(behind[0]) and behind[0].startswith(behind_alone[0]):
        return len(text) - len(behind[0]) + len(behind_alone[0])
    raise TrainingError(f"{render.where}: where messages[{turn}] ends in the chat template cannot be told; {REMEDY}.")


def tokenize_with_loss(
    text: str, spans: list[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """The tokens of the text, and for each whether it has a character of a span."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    has_loss = [
        any(start < span_end and span_start < end for span_start, span_end in spans)
        for start, end in encoding["offset_mapping"]
    ]
    return encoding["input_ids"], has_loss
