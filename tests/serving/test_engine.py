"""Requests in one running batch: seeds, clients that leave, a full line, and failures."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch
from fastapi import HTTPException
from serving_client import MESSAGES, autoregressive, chat, generated, health, leave_after, send, streamed

from wedlm.batching import scheduler
from wedlm.batching.manager import NO_MEMORY
from wedlm.serving.detokenizer import Detokenizer
from wedlm.serving.engine import Engine, LatestOutputs
from wedlm.serving.http_errors import DEAD, FULL, SERVER_FAILED, error_json
from wedlm.serving.protocol import ChatRequest
from wedlm.serving.requests import ServedModel, prepare, read_request
from wedlm.serving.responses import ChatResponse
from wedlm.serving.routes import build_app, respond, stream
from wedlm.serving.server_metrics import RequestRecord


def test_draws_belong_to_the_seed(checkpoint, client):
    def draw(**arguments):
        return chat(client, temperature=0.8, top_p=0.9, **arguments).choices[0].message.content

    expected = [generated(checkpoint, seed=n, do_sample=True, temperature=0.8, top_p=0.9)[2] for n in range(4)]
    with ThreadPoolExecutor(4) as pool:  # four clients at once
        assert list(pool.map(lambda n: draw(seed=n), range(4))) == expected
    assert "".join(streamed(chat(client, temperature=0.8, top_p=0.9, seed=2, stream=True))[0]) == expected[2]
    assert draw(seed=1) == expected[1]
    after_one = draw()
    assert draw(seed=1) == expected[1] and after_one != draw()
    assert len({*expected, chat(client).choices[0].message.content}) == 5
    assert chat(client, temperature=None).choices[0].message.content == generated(checkpoint)[2]


def test_several_choices_draw_with_the_next_seeds(checkpoint, client):
    settings = {"temperature": 0.8, "seed": 5, "n": 3}
    texts = [generated(checkpoint, seed=5 + n, do_sample=True, temperature=0.8)[2] for n in range(3)]
    whole = chat(client, **settings)
    assert [choice.message.content for choice in whole.choices] == texts
    assert whole.usage.completion_tokens == 120
    parts, roles, reasons = ["", "", ""], [], []
    for chunk in chat(client, **settings, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
            reasons += [choice.index] if choice.finish_reason else []
    assert parts == texts and roles == sorted(reasons) == [0, 1, 2]


def test_many_clients_get_the_texts_of_generate(checkpoint, client):
    prompts = [f"the cat {'sat ' * n}" for n in range(10)]
    expected = [generated(checkpoint, prompt)[2] for prompt in prompts]

    def text(n):
        body = {"model": "tiny", "prompt": prompts[n], "max_tokens": 40, "temperature": 0}
        if n % 2:
            return "".join(streamed(client.completions.create(**body, stream=True))[0])
        return client.completions.create(**body).choices[0].text

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(text, range(10))) == expected


def test_a_client_that_leaves_ends_its_generation(client, server):
    long = {"max_tokens": 29_000, **autoregressive()}  # takes a minute or more
    stream = chat(client, stream=True, max_tokens=29_000, extra_body=autoregressive())
    next(iter(stream))
    leave_after(0.2, server, "/v1/chat/completions", {"messages": MESSAGES, "n": 4, **long})
    leave_after(0.2, server, "/v1/completions", {"prompt": "the cat", "stream": True, **long})
    stream.close()
    end = time.monotonic() + 20
    while (load := health(server))["running"] + load["waiting"]:
        assert time.monotonic() < end, load
        time.sleep(0.05)


# --- An engine in this process ---


@asynccontextmanager
async def running(checkpoint, **limits):
    """An engine on the tiny model, stopped at the end."""
    limits = {"max_batch_size": 4, "max_cached_tokens": None, "max_waiting": 8} | limits
    engine = Engine(checkpoint[1], **limits)
    engine.manager.start()
    try:
        yield engine
    finally:
        if engine.manager.is_running():
            await asyncio.to_thread(engine.stop)


def served(checkpoint):
    return ServedModel("tiny", checkpoint[1], checkpoint[2], 0)


def prepared(checkpoint, **fields):
    return prepare(served(checkpoint), read_request(served(checkpoint), ChatRequest, body_of(**fields)))


def body_of(**fields):
    return {"messages": MESSAGES, "temperature": 0, "max_tokens": 40, **fields}


async def answered(engine, checkpoint, **fields):
    """The text of an answer."""
    record = RequestRecord("POST", "/v1/chat/completions")
    response = await respond(served(checkpoint), engine, ChatRequest, body_of(**fields), record)
    return json.loads(response.body)["choices"][0]["message"]["content"]


def run(story):
    return asyncio.run(asyncio.wait_for(story, 120))


LONG = {"max_tokens": 29_000, "generation_config": {"decoding": "autoregressive"}}


async def begin(engine, checkpoint, **fields):
    """A stream that has sent its first event."""
    request = prepared(checkpoint, stream=True, **fields)
    events = stream(engine, request, ChatResponse("tiny"), RequestRecord("", ""))
    await anext(events)
    return events


async def until_empty(engine):
    while engine.manager.running or engine.manager.waiting or engine.manager.outputs.handlers:
        await asyncio.sleep(0.01)


def test_a_full_queue_is_told_at_once(checkpoint):
    """Also to requests with several choices, of which all or none are queued."""

    async def story():
        async with running(checkpoint, max_batch_size=1, max_waiting=1) as engine:
            first = await begin(engine, checkpoint, **LONG)
            second = asyncio.create_task(answered(engine, checkpoint))
            while not engine.manager.waiting:
                await asyncio.sleep(0.01)
            for fields in ({}, {"stream": True}, {"n": 2}):
                with pytest.raises(HTTPException) as error:
                    await answered(engine, checkpoint, **fields)
                assert error_json(error.value)["error"] == {"message": FULL, "type": "rate_limit_error", "code": 429}
                assert "Retry-After" in error.value.headers
            # With status 429 a client would send these again for ever.
            with pytest.raises(HTTPException, match="n=3 is more than the 2 texts that may run and wait") as error:
                await answered(engine, checkpoint, n=3)
            assert error.value.status_code == 400
            await first.aclose()
            assert await second == await answered(engine, checkpoint) == generated(checkpoint)[2]

    run(story())


def test_all_choices_or_none_are_queued(checkpoint):
    async def story():
        async with running(checkpoint, max_batch_size=1, max_waiting=1) as engine:
            other = await begin(engine, checkpoint, **LONG)
            with pytest.raises(HTTPException):
                await answered(engine, checkpoint, n=2)
            await other.aclose()
            await until_empty(engine)

    run(story())


def test_a_whole_text_is_not_read_in_the_event_loop(checkpoint, monkeypatch):
    """It holds up everybody."""
    threads, put = [], Detokenizer.put

    def noted(self, output):
        threads.append(threading.current_thread())
        return put(self, output)

    async def story():
        async with running(checkpoint) as engine:
            assert await answered(engine, checkpoint, n=2)

    monkeypatch.setattr(Detokenizer, "put", noted)
    run(story())
    assert len(threads) == 2 and threading.main_thread() not in threads


@pytest.mark.parametrize("is_stream, is_running", [(True, True), (False, True), (False, False)])
def test_a_request_ends_with_its_reader(checkpoint, is_stream, is_running):
    async def story():
        async with running(checkpoint, max_batch_size=1) as engine:
            other = None if is_running else await begin(engine, checkpoint, **LONG)
            number = 1 + (other is not None)
            reading = begin if is_stream else answered
            task = asyncio.create_task(reading(engine, checkpoint, **LONG))
            while len(engine.manager.running) + len(engine.manager.waiting) < number:
                await asyncio.sleep(0.01)
            if is_stream and is_running:
                await (await task).aclose()
            else:
                task.cancel()
                await asyncio.wait([task])
            if other is not None:
                await other.aclose()
            steps = engine.manager.counts.steps
            await until_empty(engine)
            # One turn may be under way, which reads a prompt and takes a step.
            assert engine.manager.counts.steps <= steps + 2 and not engine.manager.outputs.waiting

    run(story())


def test_a_reader_that_leaves_before_its_request_is_in_line(checkpoint):
    async def story():
        async with running(checkpoint) as engine:
            task = asyncio.create_task(answered(engine, checkpoint, **LONG))
            for _ in range(60):  # wherever its preparation is
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])
                task = asyncio.create_task(answered(engine, checkpoint, **LONG))
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.2)
            await until_empty(engine)
            assert not engine.manager.outputs.waiting

    run(story())


def test_the_death_of_the_worker_is_told(checkpoint, monkeypatch):
    async def story():
        async with running(checkpoint) as engine:
            events = await begin(engine, checkpoint, **LONG)
            whole = asyncio.create_task(answered(engine, checkpoint, **LONG))
            while len(engine.manager.running) < 2:
                await asyncio.sleep(0.01)

            def die():
                raise KeyError("a bug")

            monkeypatch.setattr(engine.manager.scheduler, "step", die)
            *_, last = [event async for event in events]
            with pytest.raises(HTTPException) as error:
                await whole
            with pytest.raises(HTTPException) as later:
                await answered(engine, checkpoint)
            app = build_app(served(checkpoint), engine)
            (health,) = (route.endpoint for route in app.routes if getattr(route, "path", "") == "/health")
            response = await health()
            assert response.status_code == 503 and json.loads(response.body)["status"] == "failed"
            return json.loads(last.removeprefix("data: "))["error"], error.value, later.value

    response, error, later = run(story())
    reason = "The thread that generates has died (KeyError: 'a bug')."
    assert response == {"message": reason, "type": "server_error", "code": 500}
    assert (error.status_code, error.detail) == (500, reason)
    assert (later.status_code, later.detail) == (503, DEAD)


def test_a_request_without_memory_may_come_again(checkpoint, monkeypatch):
    async def story():
        async with running(checkpoint) as engine:
            with monkeypatch.context() as patch:
                patch.setattr(scheduler, "forward_queries", refuse_memory)
                with pytest.raises(HTTPException) as in_batch:
                    await answered(engine, checkpoint)
            with monkeypatch.context() as patch:
                patch.setattr(engine.manager, "add_request", refuse_memory)
                with pytest.raises(HTTPException) as before:
                    await answered(engine, checkpoint)
            assert await answered(engine, checkpoint) == generated(checkpoint)[2]
            return in_batch.value, before.value

    def refuse_memory(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    for error in run(story()):
        assert (error.status_code, error.detail) == (503, NO_MEMORY) and "Retry-After" in error.headers


def test_a_request_ends_with_its_time(checkpoint, monkeypatch):
    async def story():
        async with running(checkpoint, request_timeout=0.5) as engine:
            with pytest.raises(HTTPException) as whole:
                await answered(engine, checkpoint, **LONG)
            record = RequestRecord("POST", "/v1/chat/completions")
            body = body_of(stream=True, **LONG)
            response = await respond(served(checkpoint), engine, ChatRequest, body, record)
            *_, last = [event async for event in response.body_iterator]
            await until_empty(engine)
            monkeypatch.setattr(engine, "add", lambda *_: time.sleep(1))  # as a long preparation
            with pytest.raises(HTTPException) as prepared:
                await answered(engine, checkpoint)
            return whole.value, json.loads(last.removeprefix("data: "))["error"], prepared.value

    whole, response, prepared = run(story())
    assert whole.status_code == prepared.status_code == response["code"] == 504
    assert whole.detail == prepared.detail == response["message"]
    assert whole.detail == "The request took longer than the 0.5 seconds of --request-timeout; ask for fewer tokens."
    assert whole.headers == {"x-should-retry": "false"}


def test_a_request_that_breaks_fails_alone(checkpoint, monkeypatch, caplog):
    class Breaking(torch.nn.Module):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] > 30:
                raise KeyError("a bug")
            return scores

    async def story():
        async with running(checkpoint) as engine:
            request = prepared(checkpoint, stream=True)
            request.choices[0].logits_processor.append(Breaking())
            other = asyncio.create_task(answered(engine, checkpoint))
            events = [each async for each in stream(engine, request, ChatResponse("m"), RequestRecord("", ""))]
            assert await other == generated(checkpoint)[2]
            return json.loads(events[-1].removeprefix("data: "))["error"]

    assert run(story())["message"] == SERVER_FAILED


def test_a_request_that_can_never_fit_is_refused(checkpoint):
    async def story():
        async with running(checkpoint, max_cached_tokens=100) as engine:
            with pytest.raises(HTTPException, match="there is room for 100; .*--max-cached-tokens") as error:
                await answered(engine, checkpoint, max_tokens=200)
            return error.value.status_code

    assert run(story()) == 400


def test_an_error_of_preparation_is_one_of_the_server(checkpoint, monkeypatch):
    async def story():
        async with running(checkpoint) as engine:
            monkeypatch.setattr(engine.manager, "add_request", lambda *_, **__: {}["a bug"])
            with pytest.raises(HTTPException) as error:
                await answered(engine, checkpoint)
            return error.value

    error = run(story())
    assert (error.status_code, error.detail) == (500, SERVER_FAILED)
    assert error_json(error)["error"] == {"message": SERVER_FAILED, "type": "server_error", "code": 500}


def test_draws_without_a_seed_differ_from_server_to_server(checkpoint):
    model = checkpoint[1]

    def first_seed():
        torch.manual_seed(0)  # as in every new process
        return Engine(model, 1, None, 1).manager.seed_or(None)

    assert first_seed() != first_seed()


def test_a_late_reader_misses_nothing():
    class Output:
        def __init__(self, tokens, is_finished=False):
            self.tokens, self.is_finished = tokens, lambda: is_finished

    async def story():
        outputs, seen = LatestOutputs(2), []
        outputs.put(0, Output(1))
        outputs.put(0, Output(2))
        async for index, output in outputs:
            seen.append((index, output.tokens))
            if output.tokens == 2:
                outputs.put(1, Output(5, is_finished=True))
                outputs.put(0, Output(3, is_finished=True))
        return seen

    assert run(story()) == [(0, 2), (1, 5), (0, 3)]


def test_a_slow_reader_has_no_more_time():
    """Its next output is always there, so that it never waits."""
    output = SimpleNamespace(is_finished=lambda: False)

    async def story():
        outputs, seen = LatestOutputs(1, asyncio.get_running_loop().time() + 0.2), 0
        outputs.put(0, output)
        with pytest.raises(TimeoutError):
            async for _ in outputs:
                outputs.put(0, output)
                await asyncio.sleep(0.05)
                seen += 1
                assert seen < 20
        return seen

    assert run(story()) > 1


def test_health_and_metrics_tell_what_the_server_does(server, client):
    assert chat(client).choices
    response = health(server)
    assert response["status"] == "ok" and response["model"] == "tiny"
    text = send(server, "GET", "/metrics")[1]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['wedlm_requests_total{outcome="ok",route="/v1/chat/completions"}']) >= 1
    assert float(values["wedlm_generated_tokens_total"]) >= 40
