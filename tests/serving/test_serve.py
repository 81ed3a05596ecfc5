"""`wedlm serve` as its clients see it: one server for the file, spoken to by OpenAI's own client."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import openai
import pytest
import torch
from fastapi import HTTPException
from helpers import CHECKPOINTS, REPOSITORY, run_python
from tiny_tokenizer import END, MASK, make_tokenizer
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.utils import _StreamError
from typer.testing import CliRunner

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.commands.cli import app
from wedlm.serving.server import (
    Chat,
    Generation,
    OneAtATime,
    OneModel,
    before_possible_stop,
    before_stop,
    error_response,
)

DOCUMENT = REPOSITORY / "docs" / "serve.md"
MESSAGES = [{"role": "user", "content": "the cat sat"}]
POSITIONS = 30_000
DEFAULTS = {"window_size": 8, "entropy_threshold": 4.0}  # of the server, given on the command line


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random model that writes letters, with an entropy at which a forward fills some slots and not all."""
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = WeDLMConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=POSITIONS,
        initializer_range=0.4,
        pad_token_id=END,
        eos_token_id=END,
        mask_token_id=MASK,
    )
    model = WeDLMForCausalLM(config).eval()
    letters = re.compile(r"[ -~]+")
    pieces = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    model.generation_config.suppress_tokens = [
        token for token, piece in enumerate(pieces) if token <= MASK or not letters.fullmatch(piece)
    ]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.generation_config.update(**DEFAULTS)
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def server(checkpoint):
    """The port of a running `wedlm serve`; interrupted with requests under way, it ends at once and in order."""
    command = [sys.executable, "-m", "wedlm", "serve", str(checkpoint[0]), "--port", "0", "--device", "cpu"]
    for name, value in DEFAULTS.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_CACHE": str(checkpoint[0].parent / "no-cache")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
    )
    try:
        line = process.stdout.readline()
        assert "one request at a time" in line, process.stderr.read()
        port = int(re.match(r"tiny answers at http://127\.0\.0\.1:(\d+)/v1, ", line)[1])
        yield port
        stream = client_of(port).chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, max_tokens=29_000, extra_body=autoregressive()
        )
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(post, port, "/v1/completions", {"prompt": "the cat", "max_tokens": 29_000})
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        status, answer = waiting.result()
        assert status == 503 and "The server is ending." in answer
        with pytest.raises(openai.APIError) as error:
            list(stream)
        assert error.value.body == "The server is ending."
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0 and "CancelledError" not in errors, errors
    finally:
        process.kill()
        process.wait()


def client_of(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def autoregressive(**settings):
    return {"generation_config": {"decoding": "autoregressive", **settings}}


def generated(checkpoint, prompt=None, seed=None, **settings):
    """What generate() gives in this process: the output, the new ids and their text."""
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

    class Recorder:
        def put(self, value):
            token_ids.append(value)

        def end(self):
            pass

    generated(checkpoint, streamer=Recorder())
    return [checkpoint[2].decode(ids) for ids in token_ids[1:]]  # behind the prompt


def chat(client, **arguments):
    arguments = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 40, **arguments}
    return client.chat.completions.create(**{name: value for name, value in arguments.items() if value is not None})


def streamed(chunks):
    """The texts of the events, why it ended and the usage."""
    chunks = list(chunks)
    choices = [chunk.choices[0] for chunk in chunks]
    texts = [choice.delta.content if hasattr(choice, "delta") else choice.text for choice in choices]
    return [text for text in texts if text], choices[-1].finish_reason, chunks[-1].usage


def post(port, path, body):
    """Status and text of the answer to any body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_chat_is_the_text_of_generate(checkpoint, client):
    output, ids, text = generated(checkpoint)
    assert output.forwards.item() < 30 < len(ids) == 40
    answer = chat(client)
    assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "length"
    prompt_length = output.sequences.shape[1] - 40
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        prompt_length,
        40,
        prompt_length + 40,
    )
    assert chat(client, max_tokens=7).choices[0].message.content == generated(checkpoint, max_new_tokens=7)[2]
    assert chat(client, max_tokens=5, max_completion_tokens=None).usage.completion_tokens == 5
    shorter = chat(client, max_tokens=None, max_completion_tokens=7)
    assert shorter.usage.completion_tokens == 7 and shorter.model == "tiny"


def test_a_completion_is_the_text_of_generate(checkpoint, client):
    text = generated(checkpoint, prompt="the dog")[2]
    answer = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0)
    assert answer.choices[0].text == text and answer.usage.completion_tokens == 40
    chunks = client.completions.create(model="tiny", prompt="the dog", max_tokens=40, temperature=0, stream=True)
    texts, reason, usage = streamed(chunks)
    assert "".join(texts) == text and (reason, usage) == ("length", answer.usage)


def test_a_stream_has_an_event_for_each_commit(checkpoint, client):
    text = generated(checkpoint)[2]
    texts, reason, usage = streamed(chat(client, stream=True))
    assert texts == commits(checkpoint)
    assert len(texts) < 30 and "".join(texts) == text
    assert (reason, usage) == ("length", chat(client).usage)


def test_a_stream_loses_no_part_of_a_character(checkpoint, client):
    """Tokens are bytes: a text may end within a character, and a stream waits for its end."""
    settings = {"suppress_tokens": [MASK], "decoding": "autoregressive"}
    lengths = [n for n in range(1, 25) if generated(checkpoint, max_new_tokens=n, **settings)[2].endswith("\ufffd")]
    for max_tokens in lengths[:3]:
        body = {"max_tokens": max_tokens, "extra_body": {"generation_config": settings}}
        whole = chat(client, **body).choices[0].message.content
        assert whole.endswith("\ufffd") and "".join(streamed(chat(client, **body, stream=True))[0]) == whole
    assert lengths


def test_settings_of_a_request_reach_generate(checkpoint, client):
    texts = []
    for settings in (
        {},
        {"decoding": "autoregressive"},
        {"window_size": 3},
        {"entropy_threshold": None},
        {"distance_penalty": 3.0},
        {"repetition_penalty": 1.7},
    ):
        texts.append(generated(checkpoint, **settings)[2])
        for written in (settings, json.dumps(settings)):
            answer = chat(client, extra_body={"generation_config": written})
            assert answer.choices[0].message.content == texts[-1], settings
    assert len(set(texts)) == len(texts)
    # without a limit the text may have the length that it has without generation_config
    answer = chat(client, max_tokens=None, extra_body={"generation_config": {"window_size": 3}})
    assert answer.usage.completion_tokens == 1024


def test_a_text_is_no_longer_than_the_model_reads(checkpoint, monkeypatch):
    _, model, tokenizer = checkpoint
    chats = Chat(OneModel("tiny", model, tokenizer), OneAtATime())
    assert chats._build_generation_config({}, model.generation_config).max_new_tokens == 1024
    monkeypatch.setattr(model.config, "max_position_embeddings", 300)
    assert chats._build_generation_config({}, model.generation_config).max_new_tokens == 300


def test_stop_strings_end_a_text_and_are_no_part_of_it(checkpoint, client):
    text = generated(checkpoint)[2]
    ends = list(accumulate(map(len, commits(checkpoint))))  # a stop string may begin in one commit and end in another
    across = [text[end - 1 : end + 2] for end in ends[2:12]]
    for stop in (text[10:13], *across, [text[30:33], text[15:18]], "nowhere in it", []):
        expected = before_stop(text, stop)
        answer = chat(client, stop=stop)
        assert answer.choices[0].message.content == expected, stop
        texts, reason, usage = streamed(chat(client, stop=stop, stream=True))
        assert "".join(texts) == expected and usage == answer.usage
        assert reason == answer.choices[0].finish_reason == ("length" if expected == text else "stop")
        assert (usage.completion_tokens < 40) == (expected != text)
    assert before_possible_stop("ab<e", ["<end>", "e!"]) == "ab"
    assert before_possible_stop("ab<en|", ["<end>"]) == "ab<en|"
    assert before_possible_stop("ab!cd", ["!"]) == "ab"


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
    assert seconds() < 10 + 30 * before  # all of it would take a minute or more


def test_only_one_model_is_there(client, server):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    with pytest.raises(openai.BadRequestError, match="pinned to 'tiny'; requested 'other'"):
        chat(client, model="other")
    assert "This server has tiny only, not other." in post(server, "/load_model", {"model": "other"})[1]
    assert '"status": "ready", "model": "tiny"' in post(server, "/load_model", {"model": "tiny"})[1]
    assert post(server, "/reset", {})[0] == 200 and chat(client).choices
    status, answer = post(server, "/v1/responses", {"model": "tiny", "input": "the cat"})
    assert status == 404 and json.loads(answer)["error"]["message"].endswith(
        "/v1/chat/completions and /v1/completions."
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"generation_config": {"window_size": 0}}, "window_size=0 is not a number of slots; set it to an integer of"),
        ({"generation_config": {"num_beams": 2}}, 'num_beams=2 is not offered by decoding="streaming"'),
        ({"generation_config": {"windw": 1}}, "generation_config has windw, unknown to generate(); leave it out."),
        ({"generation_config": "{"}, "generation_config='{' is not a JSON object such as"),
        ({"generation_config": [1]}, "generation_config=[1] is not a JSON object such as"),
        ({"generation_config": {"max_new_tokens": "x"}}, "has a value of the wrong kind"),
        (
            {"generation_config": {"max_new_tokens": None, "max_length": 10**13}},
            f"{10**13} tokens are more than max_position_embeddings={POSITIONS}",
        ),
        ({"max_tokens": POSITIONS + 1}, f"{POSITIONS + 1} tokens are more than max_position_embeddings={POSITIONS}"),
        ({"temperature": -1}, "temperature=-1 is not a number of 0 or more"),
        ({"temperature": "hot"}, "temperature='hot' is not a number of 0 or more"),
        ({"top_p": 1.5}, "top_p=1.5 is not a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens=0 is not an integer of 1 or more"),
        ({"max_tokens": 2.5}, "max_tokens=2.5 is not an integer of 1 or more"),
        ({"seed": True}, "seed=True is not an integer from -9223372036854775808 to"),
        ({"stop": [3]}, "stop=[3] is neither a text nor a list of texts"),
        ({"stop": ""}, "stop='' is neither a text nor a list of texts"),
        ({"messages": []}, "messages=[] is not a list of messages"),
        ({"messages": [{"content": "the cat"}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": [3]}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": "<|mask|>"}]}, f"holds the MASK token, mask_token_id={MASK}"),
        ({"messages": [{"role": "user", "content": "the cat " * POSITIONS}]}, f"={POSITIONS}; shorten the prompt"),
        ({"unheard_of": 1}, "Unexpected fields in the request: {'unheard_of'}"),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(server, arguments, sentence, stream):
    status, answer = post(
        server, "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "stream": stream} | arguments
    )
    assert status == (422 if "unheard_of" in arguments else 400)
    assert sentence.replace('"', "'") in json.loads(answer)["error"]["message"].replace('"', "'")


def test_other_bad_requests(server):
    for body in (b"{", b"[]", b"\xff"):
        status, answer = post(server, "/v1/chat/completions", body)
        assert status == 400 and re.search(
            "not a JSON object|parsing the body", json.loads(answer)["error"]["message"]
        )
    for prompt, sentence in ((3, "prompt must be a string"), ("", "empty prompt")):
        status, answer = post(server, "/v1/completions", {"model": "tiny", "prompt": prompt, "stream": prompt == ""})
        assert status == 400 and sentence in json.loads(answer)["error"]["message"]


def test_a_stream_ends_as_openai_ends_it(server):
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 5}
    _, answer = post(server, "/v1/chat/completions", body)
    *events, last, nothing = answer.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events)


def test_the_examples_of_the_documentation_run(server, capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec("".join(blocks).replace(":8000", f":{server}"), {})
    assert "completion_tokens=100" in capsys.readouterr().out
    (curl,) = re.findall(r"curl http://127.0.0.1:8000(\S+) .*?-d '(.*?)'\n", DOCUMENT.read_text(), re.DOTALL)
    assert post(server, curl[0], curl[1].encode())[0] == 200


@pytest.mark.parametrize("error, sentence", [(ValueError('say "it"\nagain.'), 'say "it" again.'), (KeyError(), "log")])
def test_a_failure_behind_the_first_text_is_told(checkpoint, error, sentence):
    """generate() ends the streamer when it fails; for a client the text would be complete."""

    class Failing(torch.nn.Module):
        def generate(self, streamer, **kwargs):
            streamer.put(torch.tensor([[5]]))
            streamer.put(checkpoint[2]("the cat", return_tensors="pt")["input_ids"][0])
            streamer.end()
            raise error

    async def items():
        config = checkpoint[1].generation_config
        config.seed = None
        queue, _ = Generation().generate_streaming(Failing(), checkpoint[2], {}, config, "request")
        return [await asyncio.wait_for(queue.get(), 60) for _ in range(2)]

    text, last = asyncio.run(items())
    assert text == "the cat" and isinstance(last, _StreamError)
    assert sentence in json.loads(f'{{"error": "{last.msg}"}}')["error"]  # as transformers writes it


def test_a_failure_of_the_server_is_told_in_openais_form(monkeypatch):
    async def fail(self, body, request_id):
        raise KeyError("a bug")

    monkeypatch.setattr(ChatCompletionHandler, "handle_request", fail)
    with pytest.raises(HTTPException) as raised:
        asyncio.run(Chat.__new__(Chat).handle_request({}, "request"))
    answer = asyncio.run(error_response(None, raised.value))
    assert answer.status_code == 500
    assert json.loads(answer.body)["error"] == {
        "message": "The server failed; its log says how.", "type": "server_error", "code": 500
    }  # fmt: skip


def test_it_warns_where_other_machines_may_come_in(tmp_path):
    for host, expected in (("0.0.0.0", True), ("127.0.0.1", False)):
        result = CliRunner().invoke(app, ["serve", str(tmp_path / "nothing"), "--host", host, "--port", "0"])
        assert result.exit_code == 2 and ("there is no key" in result.stderr) == expected


def refused(*arguments):
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")
    return result.stderr


def test_bad_input_is_one_sentence(checkpoint, tmp_path):
    folder = checkpoint[0]
    config = json.loads((CHECKPOINTS / "q3" / "config.json").read_text())
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    free = ("--port", 0)
    assert f"{tmp_path / 'nothing'} does not exist" in refused(tmp_path / "nothing", *free)
    assert "was not downloaded before" in refused("tencent/WeDLM-8B-Instruct", *free)
    assert f"`wedlm convert {tmp_path / 'qwen'} OUT`" in refused(tmp_path / "qwen", *free)
    assert "decoding='fast' is unknown" in refused(folder, *free, "--decoding", "fast")
    assert "window_size=0 is not" in refused(folder, *free, "--window-size", 0)
    assert "entropy_threshold=-1.0 is not" in refused(folder, *free, "--entropy-threshold", -1)
    assert "--entropy-threshold few is neither" in refused(folder, *free, "--entropy-threshold", "few")
    assert "distance_penalty=nan is not" in refused(folder, *free, "--distance-penalty", "nan")
    assert "the device 'gpu'" in refused(folder, *free, "--device", "gpu")
    assert "--host 'no.such.host.invalid' --port 0 cannot be" in refused(
        folder, *free, "--host", "no.such.host.invalid"
    )
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert f"--port {port} cannot be listened on (Address already in use" in refused(folder, "--port", port)
        assert "does not exist" not in refused(tmp_path / "nothing", "--port", port)  # said before anything is loaded


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "wedlm.serving.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "install wedlm with its extra 'serve', in a clone of it by pip install -e \".[serve]\"" in refused()


def test_help_imports_neither_torch_nor_transformers(tmp_path):
    code = (
        "import sys\nfrom wedlm.commands.cli import app\ntry:\n    app(['serve', '--help'])\n"
        "except SystemExit:\n    print({'torch', 'transformers'} & sys.modules.keys())"
    )
    out = run_python(code, tmp_path)
    assert "127.0.0.1" in out and "One request at a time" in out and out.strip().endswith("set()")
