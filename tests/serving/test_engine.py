"""Requests in one running batch: seeds, clients that leave, a full line, and failures."""

import asyncio
import copy
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch
from fastapi import HTTPException
from serving_client import (
    MESSAGES,
    autoregressive,
    chat,
    generated,
    health,
    leave_after,
    prepared,
    served_model,
    streamed,
)
from tiny_tokenizer import END, QWEN3, make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from wedlm.batching.manager import NO_MEMORY
from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.model_kind import ModelKind
from wedlm.serving.engine import Engine, LatestOutputs
from wedlm.serving.http_errors import DEAD, FULL, SERVER_FAILED, error_json
from wedlm.serving.protocol import ChatRequest
from wedlm.serving.requests import ServedModel
from wedlm.serving.routes import ChatResponse, build_app, respond, stream
from wedlm.serving.server_metrics import RequestRecord


def test_draws_belong_to_the_seed(checkpoint, client):
    def draw(**arguments):
        return chat(client, temperature=0.8, top_p=0.9, **arguments).choices[0].message.content

    expected = [generated(checkpoint, seed=n, do_sample=True, temperature=0.8, top_p=0.9)[2] for n in range(4)]
    with ThreadPoolExecutor(4) as pool:  # four clients at once
        assert list(pool.map(lambda n: draw(seed=n), range(4))) == expected
    assert draw() != draw()
    assert len({*expected, chat(client).choices[0].message.content}) == 5
    assert chat(client, temperature=None).choices[0].message.content == generated(checkpoint)[2]


def test_several_choices_draw_with_the_next_seeds(checkpoint, client):
    settings = {"temperature": 0.8, "seed": 5, "n": 3}
    texts = [generated(checkpoint, seed=5 + n, do_sample=True, temperature=0.8)[2] for n in range(3)]
    whole = chat(client, **settings)
    assert [choice.message.content for choice in whole.choices] == texts
    assert whole.usage.completion_tokens == 120
    parts = ["", "", ""]
    for chunk in chat(client, **settings, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert parts == texts


def test_many_clients_get_the_texts_of_generate(checkpoint, client):
    prompts = [f"the cat {'sat ' * n}" for n in range(10)]

    def text(n):
        body = {"model": "tiny", "prompt": prompts[n], "max_tokens": 40, "temperature": 0}
        if n % 2:
            return "".join(streamed(client.completions.create(**body, stream=True))[0])
        return client.completions.create(**body).choices[0].text

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(text, range(10))) == [generated(checkpoint, prompt)[2] for prompt in prompts]


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


def run(story):
    return asyncio.run(asyncio.wait_for(story, 120))


@asynccontextmanager
async def running(served, **limits):
    """An engine on the tiny model, stopped at the end."""
    engine = Engine(served.model, **{"max_batch_size": 4, "max_cached_tokens": None, "max_waiting": 8, **limits})
    engine.manager.start()
    try:
        yield engine
    finally:
        if engine.manager.is_running():
            await asyncio.to_thread(engine.stop)


@pytest.fixture
def served(checkpoint):
    return served_model(checkpoint)


SHORT, LONG = {"temperature": 0, "max_tokens": 40}, {"temperature": 0, "max_tokens": 29_000, **autoregressive()}


async def responded(engine, served, **fields):
    record = RequestRecord("POST", "/v1/chat/completions")
    return await respond(served, engine, ChatRequest, {"messages": MESSAGES, **SHORT, **fields}, record)


async def answered(engine, served, **fields):
    """The text of an answer."""
    return json.loads((await responded(engine, served, **fields)).body)["choices"][0]["message"]["content"]


async def begin(engine, served, **fields):
    """The events of a stream that has begun."""
    response = await responded(engine, served, stream=True, **fields)
    return response.body_iterator


async def refused(*arguments, **fields):
    """The error of an answer."""
    with pytest.raises(HTTPException) as error:
        await answered(*arguments, **fields)
    return error.value


def error_of(event):
    return json.loads(event.removeprefix("data: "))["error"]


async def until_empty(engine):
    while engine.manager.running or engine.manager.waiting or engine.manager.handlers:
        await asyncio.sleep(0.01)
    assert not engine.manager.outputs


def test_a_full_queue_is_told_at_once(checkpoint, served):
    """Also to requests with several choices, of which all or none are queued."""

    async def story():
        async with running(served, max_batch_size=1, max_waiting=1) as engine:
            first = await begin(engine, served, **LONG)
            assert (await refused(engine, served, n=2)).status_code == 429
            while engine.manager.waiting:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(answered(engine, served))
            while not engine.manager.waiting:
                await asyncio.sleep(0.01)
            for fields in ({}, {"stream": True}):
                error = await refused(engine, served, **fields)
                assert error_json(error)["error"] == {"message": FULL, "type": "rate_limit_error", "code": 429}
                assert "Retry-After" in error.headers
            # With status 429 a client would send these again for ever.
            error = await refused(engine, served, n=3)
            assert error.status_code == 400 and "n=3 is more than the 2 texts that may run and wait" in error.detail
            await first.aclose()
            assert await second == await answered(engine, served) == generated(checkpoint)[2]
            await until_empty(engine)

    run(story())


@pytest.mark.parametrize("is_stream, is_running", [(True, True), (False, True), (False, False)])
def test_a_request_ends_with_its_reader(served, is_stream, is_running):
    async def story():
        async with running(served, max_batch_size=1) as engine:
            other = None if is_running else await begin(engine, served, **LONG)
            reading = begin if is_stream else answered
            task = asyncio.create_task(reading(engine, served, **LONG))
            while len(engine.manager.running) + len(engine.manager.waiting) < 1 + (other is not None):
                await asyncio.sleep(0.01)
            if is_stream:
                await (await task).aclose()
            else:
                task.cancel()
                await asyncio.wait([task])
            if other is not None:
                await other.aclose()
            steps = engine.manager.counts.steps
            await until_empty(engine)
            # One turn may be under way, which reads a prompt and takes a step.
            assert engine.manager.counts.steps <= steps + 2

    run(story())


@pytest.fixture
def stock(tmp_path):
    """A Llama and its tokenizer, as the command loads and serves them; the template has tools."""
    tokenizer = make_tokenizer(QWEN3)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": len(tokenizer), "eos_token_id": END, "pad_token_id": END}
    model = LlamaForCausalLM(LlamaConfig(**shape, **tokens, initializer_range=0.4))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    model, tokenizer = load_checkpoint(tmp_path, only_decodes=True, or_stock=True)
    served = ServedModel("llama", model, tokenizer, 0)
    yield served
    served.grammars.close()


def test_requests_of_a_stock_model_share_forwards(stock):
    drawn = {"temperature": 0.9, "seed": 3}
    asked = [{}, {"messages": [{"role": "user", "content": "the dog sat on the log"}]}, drawn, {"stop": "q"}]

    async def story():
        async with running(stock) as engine:
            texts = await asyncio.gather(*(answered(engine, stock, **fields) for fields in asked))
            counts = copy.copy(engine.manager.counts)
            events = [event async for event in await begin(engine, stock)]
            (two,) = await asyncio.gather(responded(engine, stock, **drawn, n=2))
            city = {"type": "object", "properties": {"city": {"enum": ["Lima", "Rome"]}}, "required": ["city"]}
            tool = {"name": "weather", "parameters": {**city, "additionalProperties": False}}
            forced = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
            return texts, counts, events, two, await responded(engine, stock, **forced, max_tokens=99)

    texts, counts, events, two, called = run(story())
    expected = []
    for fields in asked:
        inputs = stock.tokenizer.apply_chat_template(
            fields.get("messages", MESSAGES), add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        torch.manual_seed(3)
        settings = {"do_sample": True, "temperature": 0.9} if "seed" in fields else {"do_sample": False}
        output = stock.model.generate(**inputs, max_new_tokens=40, **settings, decoding="autoregressive")
        text = stock.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        expected.append(text.partition(fields.get("stop", "\0"))[0])
    assert texts == expected and counts.row_forwards > 2 * counts.steps
    chunks = [json.loads(each) for each in re.findall("data: ({.*})", "".join(events))]
    rest = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert len(rest) > 10 and expected[0].endswith(rest)
    assert json.loads(two.body)["choices"][0]["message"]["content"] == expected[2]
    (call,) = json.loads(called.body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Lima", "Rome")


def test_a_reader_that_leaves_before_its_request_is_in_line(served):
    async def story():
        async with running(served) as engine:
            for _ in range(60):  # wherever its preparation is
                task = asyncio.create_task(answered(engine, served, **LONG))
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])
            await asyncio.sleep(0.2)
            await until_empty(engine)

    run(story())


def test_the_death_of_the_thread_is_told(served, monkeypatch):
    def die():
        raise KeyError("a bug")

    async def story():
        async with running(served) as engine:
            events = await begin(engine, served, **LONG)
            whole = asyncio.create_task(refused(engine, served, **LONG))
            while len(engine.manager.running) < 2:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(engine.manager.scheduler, "step", die)
            *_, last = [event async for event in events]
            error, later = await whole, await refused(engine, served)
            routes = build_app(served, engine).routes
            (health,) = (route.endpoint for route in routes if getattr(route, "path", "") == "/health")
            response = await health()
            assert response.status_code == 503 and json.loads(response.body)["status"] == "failed"
            return error_of(last), error, later

    response, error, later = run(story())
    reason = "The thread that generates has died (KeyError: 'a bug')."
    assert response == {"message": reason, "type": "server_error", "code": 500}
    assert (error.status_code, error.detail) == (500, reason)
    assert (later.status_code, later.detail) == (503, DEAD)


def test_a_request_without_memory_may_come_again(checkpoint, served, monkeypatch):
    def refuse_memory(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    async def story():
        async with running(served) as engine:
            errors = []
            for place, name in ((ModelKind, "forward"), (engine.manager, "add_request")):
                with monkeypatch.context() as patch:
                    patch.setattr(place, name, refuse_memory)
                    errors.append(await refused(engine, served))
            assert await answered(engine, served) == generated(checkpoint)[2]
            return errors

    for error in run(story()):
        assert (error.status_code, error.detail) == (503, NO_MEMORY) and "Retry-After" in error.headers


def test_a_request_ends_with_its_time(served, monkeypatch):
    async def story():
        async with running(served, request_timeout=0.5) as engine:
            whole = await refused(engine, served, **LONG)
            *_, last = [event async for event in await begin(engine, served, **LONG)]
            await until_empty(engine)
            monkeypatch.setattr(engine, "add", lambda *_: time.sleep(1))  # as a long preparation
            return whole, error_of(last), await refused(engine, served)

    whole, response, preparing = run(story())
    assert whole.status_code == preparing.status_code == response["code"] == 504
    assert whole.detail == preparing.detail == response["message"]
    assert whole.detail == "The request took longer than the 0.5 seconds of --request-timeout; ask for fewer tokens."
    assert whole.headers == {"x-should-retry": "false"}


def test_a_request_that_breaks_fails_alone(checkpoint, served):
    class Breaking(torch.nn.Module):
        def __call__(self, input_ids, scores):
            return scores if input_ids.shape[1] <= 30 else {}["a bug"]

    async def story():
        async with running(served) as engine:
            request = prepared(served, stream=True, **SHORT)
            request.choices[0].logits_processor.append(Breaking())
            other = asyncio.create_task(answered(engine, served))
            events = [each async for each in stream(engine, request, ChatResponse("m"), RequestRecord("", ""))]
            assert await other == generated(checkpoint)[2]
            return error_of(events[-1])

    assert run(story()) == {"message": SERVER_FAILED, "type": "server_error", "code": 500}


def test_errors_of_preparation(served, monkeypatch):
    """Those of the client have status 400, and those of the server 500."""

    async def story():
        async with running(served, max_cached_tokens=100) as engine:
            too_long = await refused(engine, served, max_tokens=200)
            monkeypatch.setattr(engine.manager, "add_request", lambda *_, **__: {}["a bug"])
            return too_long, await refused(engine, served)

    too_long, error = run(story())
    assert too_long.status_code == 400 and "there is room for 100; shorten" in too_long.detail
    assert (error.status_code, error.detail) == (500, SERVER_FAILED)


def test_draws_without_a_seed_differ_from_server_to_server(checkpoint):
    def first_seed():
        torch.manual_seed(0)  # as in every new process
        return Engine(checkpoint[1], 1, None, 1).manager.generator.initial_seed()

    assert first_seed() != first_seed()


def test_a_late_reader_misses_nothing():
    def output(tokens, is_finished=False):
        return SimpleNamespace(tokens=tokens, is_finished=lambda: is_finished)

    async def story():
        outputs, seen = LatestOutputs(2), []
        outputs.put(0, output(1))
        outputs.put(0, output(2))
        async for index, each in outputs:
            seen.append((index, each.tokens))
            if each.tokens == 2:
                outputs.put(1, output(5, is_finished=True))
                outputs.put(0, output(3, is_finished=True))
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
