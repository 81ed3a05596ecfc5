"""One request after the other: seeds, clients that leave, and failures."""

import asyncio
import copy
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fastapi import HTTPException
from serving_client import (
    MESSAGES,
    autoregressive,
    chat,
    client_of,
    generated,
    leave_after,
    streamed,
)
from transformers.cli.serving.utils import _StreamError

from wedlm.serving.errors import FULL
from wedlm.serving.prepared_tokenizer import PreparedTokenizer
from wedlm.serving.worker import Worker, client_has_left


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


def test_a_client_that_leaves_ends_its_generation(checkpoint, client, server):
    def seconds():
        start = time.monotonic()
        assert chat(client_of(server)).choices[0].message.content == generated(checkpoint)[2]
        return time.monotonic() - start

    before = seconds()
    long = {"messages": MESSAGES, "max_tokens": 29_000, **autoregressive()}
    leave_after(1, server, "/v1/chat/completions", long)
    stream = chat(client, stream=True, max_tokens=29_000, extra_body=autoregressive())
    for _, _ in zip(range(4), stream, strict=False):
        pass
    for path, body in (  # these wait for the stream
        ("/v1/chat/completions", long),
        ("/v1/chat/completions", long | {"stream": True}),
        ("/v1/completions", {"prompt": "the cat", "max_tokens": 29_000, **autoregressive()}),
    ):
        leave_after(0.2, server, path, body)
    stream.close()
    assert seconds() < 10 + 30 * before  # each of the whole texts would take a minute or more


class Recording(torch.nn.Module):
    """A model that notes its calls."""

    def __init__(self):
        super().__init__()
        self.num_calls = 0

    def generate(self, **kwargs):
        self.num_calls += 1
        return torch.tensor([[1, 2]])


def start(worker, model, checkpoint, is_stream):
    """A request to the worker, as the routes make it."""
    config = copy.deepcopy(checkpoint[1].generation_config)
    config.seed = None
    tokenizer, inputs = PreparedTokenizer(checkpoint[2], {}), {"input_ids": torch.tensor([[1]])}
    if is_stream:
        return worker.generate_streaming(model, tokenizer, inputs, config, "request")
    return asyncio.ensure_future(worker.generate_non_streaming(model, tokenizer, inputs, config, "request"))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_whose_client_left_in_line_is_not_generated(checkpoint, is_stream):
    async def calls(leaves):
        worker, model, is_free, has_left = Worker(), Recording(), threading.Event(), threading.Event()
        client_has_left.set(has_left)
        worker.submit(is_free.wait)
        request = start(worker, model, checkpoint, is_stream)
        await asyncio.sleep(0)  # the request is in line
        if leaves:
            has_left.set()
            if not is_stream:
                request.cancel()
        is_free.set()
        await asyncio.wrap_future(worker.submit(int))
        return model.num_calls

    assert [asyncio.run(calls(leaves)) for leaves in (False, True)] == [1, 0]


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_line_has_an_end(checkpoint, is_stream):
    async def second_request():
        worker, model, is_free = Worker(), Recording(), threading.Event()
        worker.places = threading.BoundedSemaphore(1)
        worker.submit(is_free.wait)
        start(worker, model, checkpoint, is_stream=True)
        try:
            with pytest.raises(HTTPException) as error:
                request = start(worker, model, checkpoint, is_stream)
                await request
        finally:
            is_free.set()
        await asyncio.wrap_future(worker.submit(int))
        await start(worker, model, checkpoint, is_stream=False)  # there is a place again
        return error.value

    error = asyncio.run(second_request())
    assert (error.status_code, error.detail) == (503, FULL)


@pytest.mark.parametrize("error, sentence", [(ValueError('say "it"\nagain.'), 'say "it" again.'), (KeyError(), "log")])
def test_a_failure_behind_the_first_text_is_told(checkpoint, error, sentence):
    """generate() ends the streamer when it fails, and the client must not take the text for complete."""

    class Failing(torch.nn.Module):
        def generate(self, streamer, **kwargs):
            streamer.put(torch.tensor([[5]]))
            streamer.put(checkpoint[2]("the cat", return_tensors="pt")["input_ids"][0])
            streamer.end()
            raise error

    async def items():
        config = checkpoint[1].generation_config
        config.seed = None
        queue, _ = Worker().generate_streaming(Failing(), PreparedTokenizer(checkpoint[2], {}), {}, config, "request")
        return [await asyncio.wait_for(queue.get(), 60) for _ in range(2)]

    text, last = asyncio.run(items())
    assert text == "the cat" and isinstance(last, _StreamError)
    assert sentence in json.loads(f'{{"error": "{last.msg}"}}')["error"]  # as transformers writes it
