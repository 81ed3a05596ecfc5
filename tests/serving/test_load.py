"""Thousands of requests in one process, and hundreds of clients when the server ends."""

import asyncio
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from helpers import REPOSITORY
from serving_client import MESSAGES, autoregressive, health, post

from wedlm.serving.engine import Engine
from wedlm.serving.protocol import CompletionRequest
from wedlm.serving.requests import ServedModel
from wedlm.serving.routes import respond
from wedlm.serving.server_metrics import RequestRecord

pytestmark = pytest.mark.slow


def resident_mebibytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_is_flat_over_two_thousand_requests(checkpoint):
    """Whole, streamed, drawn, left by their clients, and with several choices; 16 clients at once."""
    _, model, tokenizer = checkpoint
    served, engine = ServedModel("tiny", model, tokenizer, 0), Engine(model, 8, 4_000, 64)
    random.seed(0)
    numbers, counts, sizes = iter(range(2_000)), Counter(), []

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
            await response.events.aclose()
            counts["left"] += 1
            return
        events = [event async for event in response.body_iterator]
        counts["streamed"] += events[-1].endswith("data: [DONE]\n\n")

    async def client() -> None:
        for number in numbers:
            await one(number)
            if number in (500, 1_000, 1_500):
                gc.collect()
                sizes.append(resident_mebibytes())

    async def story() -> None:
        await asyncio.gather(*(client() for _ in range(16)))

    engine.manager.start()
    try:
        asyncio.run(story())
        assert (
            not engine.manager.running and not engine.manager.outputs.waiting and not engine.manager.outputs.handlers
        )
    finally:
        engine.stop()
    gc.collect()
    sizes.append(resident_mebibytes())
    assert counts["left"] == 334 and counts["streamed"] == 333 and counts["whole"] >= 1_333
    assert engine.manager.counts.tokens > 10_000 and engine.manager.counts.found_tokens > 0
    assert max(sizes[1:]) - sizes[0] < 20, sizes


def test_everybody_gets_an_answer_when_the_server_ends(checkpoint):
    """64 clients read, 200 wait in line, and more than may wait have come."""
    command = [sys.executable, "-m", "wedlm", "serve", str(checkpoint[0]), "--port", "0", "--device", "cpu"]
    command += ["--max-batch-size", "64", "--max-waiting", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    answers, lock = Counter(), threading.Lock()
    errors = []
    threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True).start()
    port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])

    def ask(number: int) -> None:
        body = {"messages": MESSAGES, "max_tokens": 20_000, "stream": number % 2 == 0, **autoregressive()}
        status, text = post(port, "/v1/chat/completions", body)
        with lock:
            answers[status, "The server is ending." in text, "Send" in text or "send this one again" in text] += 1

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(274)]
    try:
        for client in clients:
            client.start()
        end = time.monotonic() + 120
        while (doing := health(port))["running"] < 64 or doing["waiting"] < 200 or not answers:
            assert time.monotonic() < end, doing
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        for client in clients:
            client.join(60)
        assert process.wait(60) == 0 and time.monotonic() - begin < 60
    finally:
        process.kill()
    assert answers[429, False, True] == 10
    assert answers[503, True, False] + answers[200, True, False] == 264, answers
    assert answers[200, True, False] > 0  # streams that had begun end with an error event
    assert "Traceback" not in errors[0], errors[0][-3000:]
