"""Chats and completions as OpenAI's client sees them: whole, streamed and refused."""

import asyncio
import json
import re

import pytest
from fastapi import HTTPException
from serving_client import (
    MESSAGES,
    chat,
    generated,
    post,
    streamed,
)
from transformers.cli.serving.chat_completion import ChatCompletionHandler

from wedlm.serving.errors import error_response
from wedlm.serving.routes import Chat


def test_a_chat_is_the_text_of_generate(checkpoint, client):
    output, ids, text = generated(checkpoint)
    assert output.forwards.item() < 30 < len(ids) == 40
    answer = chat(client)
    assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "length"
    prompt_length = output.sequences.shape[1] - 40
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        prompt_length,
        40,
        prompt_length + 40,
    )
    assert chat(client, max_tokens=7).choices[0].message.content == generated(checkpoint, max_new_tokens=7)[2]
    assert chat(client, max_tokens=5, max_completion_tokens=None).usage.completion_tokens == 5
    shorter = chat(client, max_tokens=None, max_completion_tokens=7)
    assert shorter.usage.completion_tokens == 7 and shorter.model == "tiny"


def test_a_completion_is_the_text_of_generate(checkpoint, client):
    text = generated(checkpoint, prompt="the dog")[2]
    answer = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0)
    assert answer.choices[0].text == text and answer.usage.completion_tokens == 40
    chunks = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0, stream=True)
    texts, reason, usage = streamed(chunks)
    assert "".join(texts) == text and (reason, usage) == ("length", answer.usage)


def test_other_bad_requests(server):
    for body in (b"{", b"[]", b"\xff"):
        status, answer = post(server, "/v1/chat/completions", body)
        assert status == 400 and re.search(
            "not a JSON object|parsing the body", json.loads(answer)["error"]["message"]
        )
    for prompt, sentence in ((3, "prompt must be a string"), ("", "empty prompt")):
        status, answer = post(server, "/v1/completions", {"model": "tiny", "prompt": prompt, "stream": prompt == ""})
        assert status == 400 and sentence in json.loads(answer)["error"]["message"]


def test_a_stream_ends_as_openai_ends_it(server):
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 5}
    _, answer = post(server, "/v1/chat/completions", body)
    *events, last, nothing = answer.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events)


def test_a_failure_of_the_server_is_told_in_openais_form(monkeypatch):
    async def fail(self, body, request_id):
        raise KeyError("a bug")

    monkeypatch.setattr(ChatCompletionHandler, "handle_request", fail)
    with pytest.raises(HTTPException) as raised:
        asyncio.run(Chat.__new__(Chat).handle_request({}, "request"))
    answer = asyncio.run(error_response(None, raised.value))
    assert answer.status_code == 500
    assert json.loads(answer.body)["error"] == {
        "message": "The server failed; its log says how.", "type": "server_error", "code": 500
    }  # fmt: skip
