"""One request after the other: seeds, clients that leave, and failures."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from serving_client import (
    autoregressive,
    chat,
    client_of,
    generated,
    streamed,
)
from transformers.cli.serving.utils import _StreamError

from wedlm.serving.worker import Worker


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
    stream = chat(client, stream=True, max_tokens=29_000, extra_body=autoregressive())
    for _, _ in zip(range(4), stream, strict=False):
        pass
    stream.close()
    assert seconds() < 10 + 30 * before  # the whole text would take a minute or more


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
        queue, _ = Worker().generate_streaming(Failing(), checkpoint[2], {}, config, "request")
        return [await asyncio.wait_for(queue.get(), 60) for _ in range(2)]

    text, last = asyncio.run(items())
    assert text == "the cat" and isinstance(last, _StreamError)
    assert sentence in json.loads(f'{{"error": "{last.msg}"}}')["error"]  # as transformers writes it
