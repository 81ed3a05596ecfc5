"""A `wedlm serve` in a process of its own, requests to it, and the same from `model.generate()`."""

import copy
import http.client
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import openai
import torch
from helpers import REPOSITORY

from wedlm.batching.scheduler import BatchCounts
from wedlm.serving.protocol import ChatRequest
from wedlm.serving.requests import ServedModel, prepare, read_request

MESSAGES = [{"role": "user", "content": "the cat sat"}]
POSITIONS = 30_000
DEFAULTS = {"window_size": 8, "entropy_threshold": 4.0}  # options of the server


@contextmanager
def started_server(folder, *options):
    """The process of a server of the folder and its port; the process is killed in the end."""
    command = [sys.executable, "-m", "wedlm", "serve", folder, "--port", "0", "--device", "cpu", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_CACHE": str(folder.parent / "no-cache")}
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        cwd=REPOSITORY,
    ) as process:  # fmt: skip
        try:
            line = process.stdout.readline()
            assert "cached tokens" in line, process.stderr.read()
            start = rf"{folder.name} answers at http://127\.0\.0\.1:(\d+)/v1, up to 64 texts at once, "
            yield process, int(re.match(start, line)[1])
        finally:
            process.kill()


def client_of(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)


def autoregressive(**settings):
    return {"generation_config": {"decoding": "autoregressive", **settings}}


def generated(checkpoint, prompt=None, seed=None, **settings):
    """The output of generate() in this process, the new ids and their text."""
    _, model, tokenizer = checkpoint
    if prompt is None:
        inputs = tokenizer.apply_chat_template(
            MESSAGES, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    else:
        inputs = tokenizer(prompt, return_tensors="pt")
    if seed is not None:
        torch.manual_seed(seed)
    settings = {"max_new_tokens": 40, "do_sample": False, **settings}
    output = model.generate(**inputs, **settings, return_dict_in_generate=True)
    ids = output.sequences[0, inputs["input_ids"].shape[1] :]
    return output, ids, tokenizer.decode(ids, skip_special_tokens=True)


def commits(checkpoint):
    """The text of each commit."""
    token_ids = []
    generated(checkpoint, streamer=SimpleNamespace(put=token_ids.append, end=lambda: None))
    return [checkpoint[2].decode(ids) for ids in token_ids[1:]]  # behind the prompt


def served_model(checkpoint, **of_tokenizer):
    """The model as the server has it, with other attributes of its tokenizer."""
    tokenizer = copy.copy(checkpoint[2])
    for name, value in of_tokenizer.items():
        setattr(tokenizer, name, value)
    return ServedModel("tiny", checkpoint[1], tokenizer, 0)


def prepared(served, **fields):
    """A chat on its way into the batch."""
    return prepare(served, read_request(served, ChatRequest, {"messages": MESSAGES} | fields))


WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chat(client, **arguments):
    arguments = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 40, **arguments}
    return client.chat.completions.create(**{name: value for name, value in arguments.items() if value is not None})


def streamed(chunks):
    """The texts of the events, the finish_reason and the usage, where it was asked for."""
    chunks = list(chunks)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    texts = [choice.delta.content if hasattr(choice, "delta") else choice.text for choice in choices]
    return [text for text in texts if text], choices[-1].finish_reason, chunks[-1].usage


def send(port, method, path, data=None, headers=None, **arguments):
    """The status and the text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, data, headers or {}, **arguments)
    with connection.getresponse() as response:
        answer = response.status, response.read().decode()
    connection.close()
    return answer


def post(port, path, body, headers=None, **arguments):
    """The status and the text of the answer to a body."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    return send(port, "POST", path, data, {"Content-Type": "application/json", **(headers or {})}, **arguments)


async def greet(scope, receive, send):
    """An app that answers every request."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


def health(port):
    return json.loads(send(port, "GET", "/health")[1])


def idle_manager():
    """What metrics read of a manager that has done nothing."""
    return SimpleNamespace(counts=BatchCounts(), scheduler=None, running={}, waiting={}, max_cached_tokens=0)


def leave_after(seconds, port, path, body):
    """Posts a body and closes the connection before the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(seconds)
    connection.close()
