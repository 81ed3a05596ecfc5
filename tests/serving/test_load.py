"""The memory of a process that answers thousands of requests."""

import asyncio
import gc
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from serving_client import served_model

from wedlm.serving.engine import Engine
from wedlm.serving.protocol import CompletionRequest
from wedlm.serving.routes import respond
from wedlm.serving.server_metrics import RequestRecord

pytestmark = pytest.mark.slow


def resident_mebibytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_is_flat_over_many_requests(checkpoint):
    """Whole, streamed, drawn, left by their clients, and with several choices; 16 clients at once."""
    served, engine = served_model(checkpoint), Engine(checkpoint[1], 8, 4_000, 64)
    random.seed(0)
    numbers, counts, sizes = iter(range(1_200)), Counter(), []

    async def one(number: int) -> None:
        prompt = "the cat sat " * random.randint(1, 8) + str(number)
        body = {"prompt": prompt, "max_tokens": random.randint(1, 30), "stream": number % 3 == 0}
        body |= {"seed": number, "temperature": number % 2, "n": 1 + number % 5 // 4}
        record = RequestRecord("POST", "/v1/completions")
        response = await respond(served, engine, CompletionRequest, body, record)
        if not body["stream"]:
            counts["whole"] += len(json.loads(response.body)["choices"])
            return
        if number % 6 == 0:
            await response.body_iterator.aclose()
            counts["left"] += 1
            return
        events = [event async for event in response.body_iterator]
        counts["streamed"] += events[-1].endswith("data: [DONE]\n\n")

    async def client() -> None:
        for number in numbers:
            await one(number)
            if number in (400, 800):
                gc.collect()
                sizes.append(resident_mebibytes())

    async def story() -> None:
        await asyncio.gather(*(client() for _ in range(16)))
        while engine.manager.cancelled or engine.manager.running:  # the last request may have been left
            await asyncio.sleep(0.01)

    engine.manager.start()
    try:
        asyncio.run(story())
        assert not engine.manager.running
        assert not engine.manager.outputs and not engine.manager.handlers
    finally:
        engine.stop()
    gc.collect()
    sizes.append(resident_mebibytes())
    assert counts["left"] == counts["streamed"] == 200 and counts["whole"] >= 800
    assert engine.manager.counts.tokens > 6_000 and engine.manager.counts.found_tokens > 0
    assert max(sizes[1:]) - sizes[0] < 20, sizes
