"""Answers in the form of OpenAI's protocol: chats and completions, whole and in events."""

import json
import time
from uuid import uuid4

from transformers.cli.serving.utils import ToolCall
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.serving.answer import Answer, Part

DONE = "data: [DONE]\n\n"


def event(content: dict) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def usage_of(num_prompt: int, answers: list[Answer]) -> dict:
    number = sum(len(answer.token_ids) for answer in answers)
    return {"prompt_tokens": num_prompt, "completion_tokens": number, "total_tokens": num_prompt + number}


def call_of(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


class ChatForm:
    """The form of /v1/chat/completions."""

    prefix, whole, in_part = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def choice(index: int, answer: Answer, part: Part) -> dict:
        """A whole text."""
        message = {"role": "assistant", "content": part.text, "refusal": None}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.tool_calls:
            message |= {"content": part.text or None, "tool_calls": [call_of(call) for call in part.tool_calls]}
        logprobs = ChatForm.logprobs(answer, part)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish_reason}

    @staticmethod
    def opening(index: int) -> dict | None:
        """The part before the first text."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    @staticmethod
    def continued(index: int, answer: Answer, part: Part) -> dict | None:
        """The further part of a text; None where there is nothing to tell."""
        delta, logprobs = {}, ChatForm.logprobs(answer, part)
        if part.text or logprobs:
            delta["content"] = part.text
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.tool_calls:
            first = answer.num_tool_calls - len(part.tool_calls)
            delta["tool_calls"] = [
                {"index": number, **call_of(call)} for number, call in enumerate(part.tool_calls, first)
            ]
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None} if delta else None

    @staticmethod
    def closing(index: int, answer: Answer) -> dict:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": answer.finish_reason}

    @staticmethod
    def logprobs(answer: Answer, part: Part) -> dict | None:
        if answer.scores is None:
            return None
        return {"content": answer.scores.of_chat(part.tokens), "refusal": None}


class CompletionForm:
    """The form of /v1/completions."""

    prefix, whole, in_part = "cmpl-", "text_completion", "text_completion"

    @staticmethod
    def choice(index: int, answer: Answer, part: Part) -> dict:
        """A whole text."""
        return CompletionForm.text(index, answer, part) | {"finish_reason": answer.finish_reason}

    @staticmethod
    def opening(index: int) -> dict | None:
        """Nothing: a text has no role."""

    @staticmethod
    def continued(index: int, answer: Answer, part: Part) -> dict | None:
        """The further part of a text; None where there is nothing to tell."""
        return CompletionForm.text(index, answer, part) if part.text or (part.tokens and answer.scores) else None

    @staticmethod
    def closing(index: int, answer: Answer) -> dict:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": answer.finish_reason}

    @staticmethod
    def text(index: int, answer: Answer, part: Part) -> dict:
        logprobs = None if answer.scores is None else answer.scores.of_completion(part.tokens)
        return {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": None}


class Form:
    """The answer to one request, in one of the two forms.

    Args:
        kind (`type`): `ChatForm` or `CompletionForm`.
        model (`str`): The name of the model.
        sends_usage (`bool`): Whether an event tells the number of tokens; the others then say null.
    """

    def __init__(self, kind: type[ChatForm] | type[CompletionForm], model: str, sends_usage: bool = False):
        self.kind, self.name = kind, f"{kind.prefix}{uuid4().hex}"
        self.frame = {"id": self.name, "created": int(time.time()), "model": model}
        if sends_usage:
            self.frame["usage"] = None

    def openings(self, number: int) -> list[list[dict]]:
        """The choices of the events before the first text."""
        return [[choice] for i in range(number) if (choice := self.kind.opening(i)) is not None]

    def choice(self, index: int, answer: Answer, output: GenerationOutput) -> dict:
        """A whole text."""
        return self.kind.choice(index, answer, answer.put(output))

    def whole(self, choices: list[dict], usage: dict) -> dict:
        return self.frame | {"object": self.kind.whole, "choices": choices, "usage": usage}

    def event(self, choices: list[dict], **more: dict) -> str:
        return event(self.frame | {"object": self.kind.in_part, "choices": choices, **more})
