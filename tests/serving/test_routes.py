"""Chats and completions as OpenAI's client sees them: whole, streamed and refused."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from serving_client import MESSAGES, WITH_USAGE, chat, generated, health, post, send
from tiers import slow_but

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


def test_only_one_model_is_there(client, server):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    for other in ("other", "an/other"):
        for asked in (lambda name: client.models.retrieve(name), lambda name: chat(client, model=name)):
            with pytest.raises(openai.NotFoundError, match="does not exist; this server has tiny only.") as error:
                asked(other)
            assert error.value.body | {"message": ""} == {
                "message": "", "type": "invalid_request_error", "param": "model", "code": "model_not_found"
            }  # fmt: skip
    for method, path in (("POST", "/v1/responses"), ("GET", "/docs"), ("GET", "/v1/completions")):
        status, answer = send(server, method, path, b"{}", {"Content-Type": "application/json"})
        assert status in (404, 405) and "This server answers /v1/chat/completions" in answer


def test_a_stream_tells_its_tokens_if_asked(client):
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chat(client, stream=True))
    *_, last = chat(client, **WITH_USAGE)
    assert last.choices == [] and last.usage.completion_tokens == 40


def test_health_and_metrics_tell_what_the_server_does(server, client):
    assert chat(client).choices
    load = health(server)
    assert load["status"] == "ok" and load["model"] == "tiny"
    text = send(server, "GET", "/metrics")[1]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['wedlm_requests_total{outcome="ok",route="/v1/chat/completions"}']) >= 1
    assert float(values["wedlm_generated_tokens_total"]) >= 40


def test_a_sentence_is_one_line():
    assert sentence_of(ValueError('say "it"\n  again.')) == 'say "it" again.'
    assert sentence_of("x" * 2000) == "x" * 1000 + " ..."


LONG, SHORT = [{"role": "user", "content": "the cat sat " * 2500}], {"max_tokens": 20}
HOSTILE = {  # the body, and the status of the answer
    "a word of 1 MB": ({"messages": [{"role": "user", "content": "x" * 1_000_000}]}, 400),
    "spaces that fit": ({"messages": [{"role": "user", "content": " " * 20_000}], **SHORT}, 200),
    "50,000 messages": ({"messages": [{"role": "u"}] * 50_000}, 400),
    "small objects": (b'{"messages": [' + b"{}," * 300_000 + b"{}]}", 400),
    "nested": (b'{"messages": ' + b"[" * 1_000_000, 400),
    "50 MB": (b" " * 50_000_000, 413),
    "fields": ({"messages": MESSAGES, **{f"field{i}": 1 for i in range(50_000)}}, 400),
    "n-grams": ({"messages": LONG, "generation_config": {"encoder_no_repeat_ngram_size": 10**12}, **SHORT}, 200),
    "tokens once": ({"messages": LONG, "generation_config": {"no_repeat_ngram_size": 1}, **SHORT}, 200),
}


# One for each place where the time could go: the tokenizer, JSON, the body, a processor.
IN_FULL = ("spaces that fit", "small objects", "50 MB", "n-grams")


@pytest.mark.full
@pytest.mark.parametrize("name", slow_but(IN_FULL, HOSTILE))
def test_health_is_told_in_half_a_second_while_hostile_requests_come(server, name):
    """Another process may hold up a busy machine, so that a request that blocks the server must do so three times."""
    body, status = HOSTILE[name]
    body = json.dumps(body).encode() if isinstance(body, dict) else body

    def worst_of_health(is_over):
        worst = 0
        while not is_over.wait(0.02):
            start = time.monotonic()
            assert health(server)["status"] == "ok"
            worst = max(worst, time.monotonic() - start)
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
