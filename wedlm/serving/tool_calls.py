"""Tool calls: parsed from the text of an answer, and the form of a call that is forced."""

import json
import re
from reprlib import repr as shown
from types import SimpleNamespace

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cli.serving.utils import ToolCall, get_response_template, response_events_to_chunks
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import load_response_template

from wedlm.serving.grammars import ANY_OBJECT, Schema
from wedlm.serving.protocol import Function

BEGIN, END = "<tool_call>", "</tool_call>"  # as the chat templates of Qwen and of many others write a call
QWEN3 = SimpleNamespace(config=SimpleNamespace(model_type="qwen3"))  # a model whose template transformers knows
BLANKS = r"\s{0,16}"  # instead of any number of them, which a search tries from each blank of a run anew
NO_CALL = KeyError, RuntimeError, TypeError, ValueError  # what the parser raises, and `checked`
PIECE = re.compile(r"[^>\]]*[>\]]|[^>\]]+")  # A mark of a template ends with such a bracket, and so does a piece.


class OutputParser:
    """Tells tool calls and reasoning from content, with transformers' parser. A call that is not JSON stays content.

    The end of the prompt may begin the answer. `reads_special_tokens` says whether the template has some in it.
    """

    def __init__(self, template: dict, prompt: str, reads_special_tokens: bool):
        template = load_response_template(with_few_blanks(template))
        prefix = template.truncate_past_last_anchor(prompt)
        # (Without an anchor it is the whole prompt, in which anybody may have written marks.)
        self.parser = ResponseParser(template, prefix="" if prefix == prompt else prefix)
        self.reads_special_tokens = reads_special_tokens
        self.unreported = ""  # the text behind the last item
        self.is_broken = False

    @classmethod
    def from_prompt(
        cls, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, tokens: list[int]
    ) -> "OutputParser | None":
        """The parser of the answer to a prompt; None if the model has no response template and writes no calls."""
        template = get_response_template(tokenizer, model)
        if template is None and not writes_calls(tokenizer):
            return None
        reads_special_tokens = template is not None
        return cls(template or get_response_template(tokenizer, QWEN3), tokenizer.decode(tokens), reads_special_tokens)

    def feed(self, text: str) -> list[str | ToolCall]:
        """The items that the next text completes: content, reasoning (`ReasoningText`) and tool calls."""
        if self.is_broken:
            return [text]
        items = []
        for piece in PIECE.finditer(text):  # so that no item is lost with a call that is not JSON
            self.unreported += piece[0]
            try:
                events = self.parser.feed(piece[0])
                items += checked(response_events_to_chunks(events))
            except NO_CALL:
                self.is_broken = True
                return [*items, self.unreported + text[piece.end() :]]
            self.mark_reported(events)
        return items

    def mark_reported(self, events: list[dict]) -> None:
        """Removes content from `unreported` at once, and reasoning and calls with their marks when they end."""
        for event in events:
            if event["type"] == "region_chunk" and event["field"] == "content":
                self.unreported = self.unreported.partition(event["text"])[2]
        if events and events[-1]["type"] == "region_close":
            self.unreported = ""

    def finish(self) -> list[str | ToolCall]:
        """The last items."""
        if self.is_broken:
            return []
        try:
            return checked(response_events_to_chunks(self.parser.finalize()[1]))
        except NO_CALL:  # The answer ends within a call.
            return [self.unreported]


def with_few_blanks(template: dict) -> dict:
    """The template whose marks have few blanks before them."""
    fields = {
        name: {
            key: value.replace(r"\s*", BLANKS) if key in ("open_pattern", "close_pattern") else value
            for key, value in field.items()
        }
        for name, field in template["fields"].items()
    }
    return template | {"fields": fields}


def checked(items: list[str | ToolCall]) -> list[str | ToolCall]:
    """The items, if each call has a text as its name and an object as its arguments."""
    for call in items:
        if isinstance(call, ToolCall):
            arguments = json.loads(call.arguments, parse_constant=refuse_constant)
            if not isinstance(call.name, str) or not isinstance(arguments, dict):
                raise ValueError(f"{call} is not a call.")
    return items


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON, though Python writes and reads it.")


def writes_calls(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template writes calls between `BEGIN` and `END`."""
    template = tokenizer.chat_template
    templates = template.values() if isinstance(template, dict) else [template or ""]
    return any(BEGIN in each and END in each for each in templates)


def forced_call(function: Function) -> tuple[str | Schema, ...]:
    """The grammar of a call, as the chat template writes it, but on one line: no token of a grammar has a newline."""
    arguments = ANY_OBJECT
    if function.parameters:
        name = f"tools: parameters of {shown(function.name)}"
        arguments = Schema.from_request(name, function.parameters, function.strict)
    return f'{BEGIN}{{"name": {json.dumps(function.name)}, "arguments": ', arguments, f"}}{END}"
