"""Chats and completions as OpenAI's client sees them: whole, streamed and refused."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from serving_client import MESSAGES, WITH_USAGE, chat, generated, post, send, streamed

from wedlm.serving.http_errors import sentence_of


def test_a_chat_is_the_text_of_generate(checkpoint, client):
    output, ids, text = generated(checkpoint)
    assert output.forwards.item() < 30 < len(ids) == 40
    answer = chat(client)
    assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "length"
    usage, total = answer.usage, output.sequences.shape[1]
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (total - 40, 40, total)
    assert chat(client, max_tokens=7).choices[0].message.content == generated(checkpoint, max_new_tokens=7)[2]
    assert chat(client, max_tokens=5, max_completion_tokens=None).usage.completion_tokens == 5
    shorter = chat(client, max_tokens=None, max_completion_tokens=7)
    assert shorter.usage.completion_tokens == 7 and shorter.model == "tiny"


def test_a_completion_is_the_text_of_generate(checkpoint, client):
    text = generated(checkpoint, prompt="the dog")[2]
    answer = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0)
    assert answer.choices[0].text == text and answer.usage.completion_tokens == 40
    chunks = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0, **WITH_USAGE)
    texts, reason, usage = streamed(chunks)
    assert "".join(texts) == text and (reason, usage) == ("length", answer.usage)


def test_only_one_model_is_there(client, server):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    for other in ("other", "an/other"):
        with pytest.raises(
            openai.NotFoundError, match=f"The model {other} does not exist; this server has tiny only."
        ):
            client.models.retrieve(other)
        with pytest.raises(openai.NotFoundError, match="does not exist; this server has tiny only.") as error:
            chat(client, model=other)
        assert (error.value.code, error.value.param, error.value.type) == (
            "model_not_found", "model", "invalid_request_error",
        )  # fmt: skip
    for method, path in (
        ("POST", "/v1/responses"),
        ("GET", "/docs"),
        ("GET", "/v1/completions"),
    ):
        status, answer = send(server, method, path, b"{}", {"Content-Type": "application/json"})
        assert status in (404, 405) and "This server answers /v1/chat/completions" in answer


def test_a_stream_tells_its_tokens_if_asked(client):
    plain = list(chat(client, stream=True))
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in plain)
    *_, last = chat(client, **WITH_USAGE)
    assert last.choices == [] and last.usage.completion_tokens == 40
    with pytest.raises(openai.BadRequestError, match="is only for stream=true; leave it out"):
        chat(client, stream_options={"include_usage": True})
    with pytest.raises(openai.BadRequestError, match="stream_options.include_obfuscation=True is not offered"):
        chat(client, stream=True, stream_options={"include_obfuscation": True})


def test_a_stream_ends_as_openai_ends_it(server):
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 5}
    _, answer = post(server, "/v1/chat/completions", body)
    *events, last, nothing = answer.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events)


def test_a_sentence_is_one_line():
    assert sentence_of(ValueError('say "it"\n  again.')) == 'say "it" again.'
    assert sentence_of("x" * 2000) == "x" * 1000 + " ..."


LONG, SHORT = [{"role": "user", "content": "the cat sat " * 2500}], {"max_tokens": 20}
HOSTILE = {  # the body, and the status of the answer
    "a text of 1 MB": ({"messages": [{"role": "user", "content": "the cat " * 125_000}]}, 400),
    "a word of 1 MB": ({"messages": [{"role": "user", "content": "x" * 1_000_000}]}, 400),
    "50,000 messages": ({"messages": [{"role": "u"}] * 50_000}, 400),
    "tool calls": ({"messages": [{"role": "u", "tool_calls": [{"arguments": {}}] * 45_000}]}, 400),
    "small objects": (b'{"messages": [' + b"{}," * 300_000 + b"{}]}", 400),
    "nested": (b'{"messages": ' + b"[" * 1_000_000, 400),
    "50 MB": (b" " * 50_000_000, 413),
    "tokens": ({"messages": MESSAGES, "generation_config": {"suppress_tokens": ["x"] * 200_000}}, 400),
    "fields": ({"messages": MESSAGES, **{f"field{i}": 1 for i in range(50_000)}}, 400),
    "n-grams": ({"messages": LONG, "generation_config": {"encoder_no_repeat_ngram_size": 10**12}, **SHORT}, 200),
    "tokens once": ({"messages": LONG, "generation_config": {"no_repeat_ngram_size": 1}, **SHORT}, 200),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE)
def test_health_is_told_in_half_a_second_while_hostile_requests_come(server, name):
    """Another process may hold up a busy machine, so that a request that blocks the server must do so three times."""
    body, status = HOSTILE[name]
    body = json.dumps(body).encode() if isinstance(body, dict) else body

    def worst_of_health(is_over):
        worst = 0
        while not is_over.is_set():
            start = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", server, timeout=60)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            worst = max(worst, time.monotonic() - start)
            connection.close()
            is_over.wait(0.02)
        return worst

    waits = []
    for _ in range(3):
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            worst = pool.submit(worst_of_health, is_over)
            try:
                response = post(server, "/v1/chat/completions", body)
            finally:
                is_over.set()
        waits.append(worst.result())
        if waits[-1] < 0.5:
            break
    assert response[0] == status
    assert status == 200 or json.loads(response[1])["error"]["message"].endswith(".")
    assert min(waits) < 0.5, waits
