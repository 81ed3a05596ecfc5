"""Answers as OpenAI's own types read them: JSON of a schema, calls of tools, and the form of every event."""

import asyncio
import json
from typing import Literal

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field
from serving_client import MESSAGES
from tiny_tokenizer import MASK

from wedlm.serving.engine import Engine
from wedlm.serving.protocol import ChatRequest, CompletionRequest
from wedlm.serving.routes import respond
from wedlm.serving.server_metrics import RequestRecord

# The tiny model suppresses the end token, which must follow JSON.
MAY_END = {"generation_config": {"suppress_tokens": [MASK]}}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=99)


@pytest.mark.parametrize("decoding", ["verified", "streaming"])
def test_openais_client_parses_an_answer(client, decoding):
    body = {"generation_config": {"suppress_tokens": [MASK], "decoding": decoding}, "max_tokens": 99}
    arguments = {"model": "tiny", "messages": MESSAGES, "response_format": Animal, "extra_body": body}
    answer = client.chat.completions.parse(**arguments)
    assert isinstance(answer.choices[0].message.parsed, Animal) and answer.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**arguments) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed


def strictly(kind, value):
    """Reads a value as one of OpenAI's types, and refuses what that does not know."""
    read = kind.model_validate(value, strict=False)

    def check(model):
        assert not model.model_extra, (type(model), model.model_extra)
        for each in vars(model).values():
            for part in each if isinstance(each, list) else [each]:
                if isinstance(part, BaseModel):
                    check(part)

    check(read)
    return read


def answers(served, route, *bodies):
    """The answers: JSON, or the events of a stream."""

    async def story():
        results = []
        for body in bodies:
            response = await respond(served, engine, route, body, RequestRecord("POST", "/v1/chat/completions"))
            if not body.get("stream"):
                results.append(json.loads(response.body))
                continue
            text = "".join([event async for event in response.body_iterator])
            *events, last = text.removesuffix("\n\n").split("\n\n")
            assert last == "data: [DONE]"
            results.append([json.loads(event.removeprefix("data: ")) for event in events])
        return results

    engine = Engine(served.model, 4, None, 8)
    engine.manager.start()
    try:
        return asyncio.run(asyncio.wait_for(story(), 120))
    finally:
        engine.stop()


def test_calls_come_back_whole_and_streamed(served):
    city = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Köln"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": city}}]
    body = {"messages": MESSAGES, "tools": tools, "tool_choice": "required", "max_tokens": 200, "n": 2, **MAY_END}
    whole, events = answers(
        served, ChatRequest, body, body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    whole = strictly(ChatCompletion, whole)
    chunks = [strictly(ChatCompletionChunk, event) for event in events]
    assert all(event["usage"] is None for event in events[:-1])
    assert len({chunk.id for chunk in chunks} | {whole.id}) == 2 and chunks[-1].usage == whole.usage
    for index, choice in enumerate(whole.choices):
        (call,) = choice.message.tool_calls
        assert choice.index == index and choice.finish_reason == "tool_calls" and choice.message.content is None
        assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Bonn", "Köln")
        mine = [each for chunk in chunks for each in chunk.choices if each.index == index]
        (streamed,) = [call for each in mine for call in each.delta.tool_calls or []]
        assert (streamed.index, streamed.function.name) == (0, "weather")
        assert streamed.function.arguments == call.function.arguments
        assert [each.delta.role for each in mine if each.delta.role] == ["assistant"]
        assert [each.finish_reason for each in mine if each.finish_reason] == ["tool_calls"]


def test_every_form_is_one_of_openais_types(served):
    chat_body = {"messages": MESSAGES, "max_tokens": 9, "logprobs": True, "top_logprobs": 2}
    for whole, events in [answers(served, ChatRequest, chat_body, chat_body | {"stream": True})]:
        strictly(ChatCompletion, whole)
        assert all(strictly(ChatCompletionChunk, event).model == "tiny" for event in events)
    body = {"prompt": "the cat", "max_tokens": 9, "logprobs": 2}
    for whole, events in [answers(served, CompletionRequest, body, body | {"stream": True})]:
        strictly(Completion, whole)
        for event in events[:-1]:  # OpenAI sends null there too, which its type forgets
            assert event["choices"][0].pop("finish_reason") is None
            event["choices"][0]["finish_reason"] = "stop"
        assert "".join(strictly(Completion, event).choices[0].text for event in events) == whole["choices"][0]["text"]
