"""Responses of OpenAI's protocol: chats and completions, whole and in chunks."""

import json
import time
from uuid import uuid4

from transformers.cli.serving.utils import ToolCall

from wedlm.serving.detokenizer import Delta, Detokenizer

DONE = "data: [DONE]\n\n"


def sse_event(content: dict) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def tool_call_json(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


class OpenAIResponse:
    """What the responses to chats and completions share; with `include_usage` each chunk has a `usage`."""

    prefix: str  # of the id
    whole_object: str
    chunk_object: str
    part_field: str  # of a choice in a chunk
    empty_part: dict | str

    def __init__(self, model: str, include_usage: bool = False):
        self.id = f"{self.prefix}{uuid4().hex}"
        self.frame = {"id": self.id, "created": int(time.time()), "model": model}
        if include_usage:
            self.frame["usage"] = None

    def whole(self, choices: list[dict], usage: dict) -> dict:
        return self.frame | {"object": self.whole_object, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict], **usage: dict) -> str:
        return sse_event(self.frame | {"object": self.chunk_object, "choices": choices, **usage})

    def chunk_choice(
        self, index: int, part: dict | str, logprobs: dict | None = None, finish_reason: str | None = None
    ) -> dict:
        return {"index": index, self.part_field: part, "logprobs": logprobs, "finish_reason": finish_reason}


class ChatResponse(OpenAIResponse):
    """The response of /v1/chat/completions."""

    prefix, whole_object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    part_field, empty_part = "delta", {}

    def choice(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict:
        """A whole text."""
        message = {"role": "assistant", "content": delta.content, "refusal": None}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            message["content"] = delta.content or None
            message["tool_calls"] = [tool_call_json(call) for call in delta.tool_calls]
        last = {"logprobs": self.logprobs(detokenizer, delta), "finish_reason": detokenizer.finish_reason}
        return {"index": index, "message": message, **last}

    def opening(self, index: int) -> dict | None:
        """The part before the first text."""
        return self.chunk_choice(index, {"role": "assistant", "content": "", "refusal": None})

    def part(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict | None:
        """A further part of a text; None if it is empty."""
        message, logprobs = {}, self.logprobs(detokenizer, delta)
        if delta.content or logprobs:
            message["content"] = delta.content
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            calls = enumerate(delta.tool_calls, detokenizer.num_tool_calls - len(delta.tool_calls))
            message["tool_calls"] = [{"index": number, **tool_call_json(call)} for number, call in calls]
        return self.chunk_choice(index, message, logprobs) if message else None

    @staticmethod
    def logprobs(detokenizer: Detokenizer, delta: Delta) -> dict | None:
        if detokenizer.logprobs is None:
            return None
        return {"content": detokenizer.logprobs.chat_form(delta.tokens), "refusal": None}


class CompletionResponse(OpenAIResponse):
    """The response of /v1/completions, whose choices are plain text."""

    prefix, whole_object, chunk_object = "cmpl-", "text_completion", "text_completion"
    part_field, empty_part = "text", ""

    def choice(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict:
        logprobs = self.logprobs(detokenizer, delta)
        return self.chunk_choice(index, delta.content, logprobs, detokenizer.finish_reason)

    def opening(self, index: int) -> dict | None:
        """Nothing: a text has no role."""

    def part(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict | None:
        if delta.content or (delta.tokens and detokenizer.logprobs):
            return self.chunk_choice(index, delta.content, self.logprobs(detokenizer, delta))

    @staticmethod
    def logprobs(detokenizer: Detokenizer, delta: Delta) -> dict | None:
        return None if detokenizer.logprobs is None else detokenizer.logprobs.completion_form(delta.tokens)
