"""transformers' own server, with a WeDLM checkpoint and the code beside its weights."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import transformers
from command_line import ids_of, user
from helpers import copy_with_code
from serving_client import client_of, send

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint

QUESTIONS = ["Count by 5 from 10 to 60.", "Solve 3x + 7 = 22."]
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not hasattr(transformers, "AutoModelForDecision"),
        reason="before 5.23 transformers' server takes classes of transformers alone",
    ),
]


def is_ready(port):
    try:
        return send(port, "GET", "/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> str:
    return str(copy_with_code(DEMO_FOLDER, tmp_path_factory.mktemp("served") / "demo"))


@pytest.fixture(scope="module", params=[[], ["--continuous-batching"]], ids=["one by one", "continuous batching"])
def client(request, served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformers")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", served, "--trust-remote-code", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", *words, *request.param],
            stdout=log, stderr=log, cwd=folder, env=os.environ | {"HF_HOME": str(folder / "home")},
        )  # fmt: skip
    try:
        while not is_ready(port):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield client_of(port), served
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def expected():
    """The text of generate() for each question, and its number of tokens."""
    model, tokenizer = load_checkpoint(DEMO_FOLDER, device="cpu")
    texts = {}
    for question in QUESTIONS:
        inputs = ids_of(tokenizer, user(question))
        new = model.generate(**inputs, max_new_tokens=60, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        texts[question] = tokenizer.decode(new, skip_special_tokens=True), len(new)
    return texts


def answer(client, question, stream):
    openai, model = client
    settings = {"temperature": 0, "max_tokens": 60, "stream": stream}
    whole = openai.chat.completions.create(model=model, messages=user(question), **settings)
    if not stream:
        return whole.choices[0].message.content, whole.usage.completion_tokens
    chunks = list(whole)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks[-1].usage.completion_tokens


def test_several_at_once_get_the_text_of_generate(client, expected):
    calls = [(question, stream) for question in QUESTIONS for stream in (False, True)]
    with ThreadPoolExecutor(len(calls)) as pool:
        texts = list(pool.map(lambda call: answer(client, *call), calls))
    assert texts == [expected[question] for question, _ in calls]
