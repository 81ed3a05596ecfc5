"""`tools`: calls that an answer makes, told from its text, and the grammar of an answer that must call one."""

import json
import re
from reprlib import repr as shown
from types import SimpleNamespace

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cli.serving.utils import ToolCall, get_response_template, response_events_to_chunks
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import load_response_template

from wedlm.serving.grammars import Grammar, Grammars
from wedlm.serving.json_schema import ANY_OBJECT, Schema
from wedlm.serving.response_format import ANY_TEXT

BEGIN, END = "<tool_call>", "</tool_call>"  # as the chat templates of Qwen and of many others write a call
OF_THAT_FORM = SimpleNamespace(config=SimpleNamespace(model_type="qwen3"))  # a model whose form transformers knows
UNFORCED = (None, "auto", "none")  # choices of the model's own
BLANKS = r"\s{0,16}"  # instead of any number of them, which a search tries from each blank of a run anew
PIECE = re.compile(r"[^>\]]*[>\]]|[^>\]]+")  # A mark of a form ends with such a bracket, and so does a piece.


class AnswerParser:
    """Tells calls and thoughts from text, with transformers' parser. A call that is no JSON stays text.

    Args:
        template (`dict`): The form of answers, as transformers describes it.
        prompt (`str`): The prompt, whose end may begin the answer.
        reads_special_tokens (`bool`): Whether the form has special tokens in it.
    """

    def __init__(self, template: dict, prompt: str, reads_special_tokens: bool):
        form = load_response_template(with_few_blanks(template))
        begun = form.truncate_past_last_anchor(prompt)
        # (Without an anchor it is the whole prompt, in which anybody may have written marks.)
        self.parser = ResponseParser(form, prefix="" if begun == prompt else begun)
        self.reads_special_tokens = reads_special_tokens
        self.untold = ""  # the text that nobody was told of
        self.is_broken = False

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, tokens: list[int]
    ) -> "AnswerParser | None":
        """The parser of an answer; None where answers have no form but that of text."""
        template = get_response_template(tokenizer, model)
        if template is None and not writes_calls(tokenizer):
            return None
        reads_special_tokens = template is not None
        template = template or get_response_template(tokenizer, OF_THAT_FORM)
        return cls(template, tokenizer.decode(tokens), reads_special_tokens)

    def feed(self, text: str) -> list[str | ToolCall]:
        """The parts that the next text of an answer completes: text, thoughts (`ReasoningText`) and calls."""
        if self.is_broken:
            return [text]
        items = []
        for piece in PIECE.finditer(text):  # so that no part is lost with a call that is no JSON
            self.untold += piece[0]
            try:
                events = self.parser.feed(piece[0])
                items += checked(response_events_to_chunks(events))
            except (KeyError, RuntimeError, TypeError, ValueError):
                self.is_broken = True
                return [*items, self.untold + text[piece.end() :]]
            self.note_told(events)
        return items

    def note_told(self, events: list[dict]) -> None:
        """Removes from `untold` the text at once, and thoughts and calls with their marks when they end."""
        for event in events:
            if event["type"] == "region_chunk" and event["field"] == "content":
                self.untold = self.untold.partition(event["text"])[2]
        if events and events[-1]["type"] == "region_close":
            self.untold = ""

    def finish(self) -> list[str | ToolCall]:
        """The last parts."""
        if self.is_broken:
            return []
        try:
            return checked(response_events_to_chunks(self.parser.finalize()[1]))
        except (KeyError, RuntimeError, TypeError, ValueError):  # The answer ends within a call.
            return [self.untold]


def with_few_blanks(template: dict) -> dict:
    """The form whose marks have few blanks before them."""
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
    raise ValueError(f"{name} is no JSON, though Python writes and reads it.")


def writes_calls(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template writes calls between `BEGIN` and `END`."""
    template = tokenizer.chat_template
    templates = template.values() if isinstance(template, dict) else [template or ""]
    return any(BEGIN in each and END in each for each in templates)


def grammar_of_choice(
    body: dict, tools: list[dict] | None, tokenizer: PreTrainedTokenizerBase, grammars: Grammars
) -> Grammar | None:
    """The grammar of an answer that must be one call; None where the model chooses.

    Args:
        body (`dict`): The request.
        tools (`list[dict]`, *optional*): Its tools.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        grammars (`Grammars`): The compiler.

    Raises:
        `ValueError`: what is wrong with `tool_choice` or the tools.
    """
    choice = body.get("tool_choice")
    if choice in UNFORCED:
        refuse_unforced(body, tools)
        return None
    names = [function_of(tool)["name"] for tool in tools or []]
    if choice == "required":
        chosen = tools or []
    elif isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        name = choice["function"].get("name")
        chosen = [tool for tool, each in zip(tools or [], names, strict=True) if each == name]
    else:
        raise ValueError(
            f"tool_choice={shown(choice)} is neither 'auto', 'none', 'required' nor an object such as "
            '{"type": "function", "function": {"name": "NAME"}}; correct it.'
        )
    if not chosen:
        raise ValueError(f"tool_choice={shown(choice)} names no tool of tools={shown(names)}; correct it.")
    if not writes_calls(tokenizer):
        raise ValueError(
            f"tool_choice={shown(choice)} is not offered for this model, whose form of calls is unknown; leave it out."
        )
    if body.get("response_format") not in ANY_TEXT:
        raise ValueError(f"tool_choice={shown(choice)} excludes response_format; leave one of them out.")
    return grammars.compiled("tools", *(call_of(function_of(tool)) for tool in chosen))


def refuse_unforced(body: dict, tools: list[dict] | None) -> None:
    """Refuses what only a grammar could keep, where there is none."""
    if body.get("parallel_tool_calls") is False and tools:
        raise ValueError("parallel_tool_calls=False needs tool_choice='required' or a named function; set it.")
    for tool in tools or []:
        if isinstance(tool.get("function"), dict) and tool["function"].get("strict"):
            raise ValueError("strict=true of a tool needs tool_choice='required' or a named function; set it.")


def function_of(tool: dict) -> dict:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(
            f"tools holds {shown(tool)}, which is not an object such as "
            '{"type": "function", "function": {"name": "NAME", "parameters": {}}}; correct it.'
        )
    return function


def call_of(function: dict) -> tuple[str | Schema, ...]:
    """A call of a function, as the chat template writes it, but on one line: a grammar has no token with a newline."""
    name, parameters = function["name"], function.get("parameters")
    arguments = ANY_OBJECT
    if parameters:
        arguments = Schema.of(f"tools: parameters of {shown(name)}", parameters, function.get("strict"))
    return f'{BEGIN}{{"name": {json.dumps(name)}, "arguments": ', arguments, f"}}{END}"
