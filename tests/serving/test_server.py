"""`wedlm serve` on the command line: its documentation, its warnings and its refusals."""

import asyncio
import json
import re
import socket
import sys

import pytest
from draft_models import save_adapter
from helpers import CHECKPOINTS, REPOSITORY
from prometheus_client import generate_latest
from serving_client import DEFAULTS, chat, client_of, generated, idle_manager, post, started_server
from tiny_tokenizer import MASK
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from wedlm.batching.scheduler import Scheduler
from wedlm.commands.cli import app
from wedlm.serving.grammars import EXCLUDED, NOT_ENFORCED
from wedlm.serving.protocol import ChatRequest, GenerationSettings
from wedlm.serving.server import Server, listen
from wedlm.serving.server_metrics import Metrics

DOCUMENT = REPOSITORY / "docs" / "serve.md"
REFERENCE = REPOSITORY / "docs" / "reference" / "serve.md"


def test_the_examples_of_the_documentation_run(server, capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    code = "".join(blocks).replace(":8000", f":{server}")
    code = re.sub(r"messages=messages(?=, stream|,\n)", "messages=messages, max_tokens=40", code)
    # The tiny model suppresses the end token, which must follow JSON.
    settings = f'extra_body={{"generation_config": {{"suppress_tokens": [{MASK}]}}}}, response_format='
    exec(code.replace("response_format=", settings), {})
    assert "completion_tokens=100" in capsys.readouterr().out
    (curl,) = re.findall(r"curl http://127.0.0.1:8000(\S+) .*?-d '(.*?)'\n", DOCUMENT.read_text(), re.DOTALL)
    assert post(server, curl[0], curl[1].encode())[0] == 200


def test_the_documentation_names_every_field_setting_metric_and_option():
    named = set(re.findall(r"`([\w-]+)", REFERENCE.read_text()))
    assert ChatRequest.model_fields.keys() - {"messages", "model"} <= named and ChatRequest.ignored <= named
    assert GenerationSettings.model_fields.keys() <= named
    assert {*NOT_ENFORCED, *EXCLUDED} <= set(re.findall(r"`([$\w]+)`", REFERENCE.read_text()))
    metrics = generate_latest(Metrics(idle_manager()).registry).decode()
    assert {name for name in re.findall(r"# TYPE (\w+) ", metrics) if not name.endswith("_created")} <= named
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert set(re.findall(r"--[a-z-]+", shown)) - {"--dtype", "--device", "--debug", "--help"} <= named


@pytest.mark.parametrize(
    "host, given, environment, is_open",
    [
        ("127.0.0.1", [], {}, False),
        ("0.0.0.0", [], {}, True),
        ("0.0.0.0", ["--api-key", "k"], {}, False),
        ("0.0.0.0", [], {"WEDLM_API_KEY": "k"}, False),
    ],
)
def test_it_warns_where_everybody_may_come_in(checkpoint, host, given, environment, is_open):
    arguments = ["serve", str(checkpoint[0]), "--host", host, "--port", "0", "--device", "gpu", *given]
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 2 and ("there is no --api-key" in result.stderr) == is_open


def refused(*arguments):
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")
    return result.stderr


def test_bad_input_is_one_sentence(checkpoint, tmp_path):
    folder, stock = checkpoint[0], tmp_path / "qwen"
    config = json.loads((CHECKPOINTS / "q3" / "config.json").read_text())
    stock.mkdir()
    (stock / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    for sentence, *arguments in (
        (f"{tmp_path / 'nothing'} does not exist", tmp_path / "nothing"),
        ("was not downloaded before", "tencent/WeDLM-8B-Instruct"),
        (f"{stock} has no tokenizer", stock),
        ("decoding='fast' is unknown", folder, "--decoding", "fast"),
        ("--entropy-threshold few is neither", folder, "--entropy-threshold", "few"),
        ("the device 'gpu'", folder, "--device", "gpu"),
        ("cannot listen on --host 'no.such.host.invalid' --port 0 (", folder, "--host", "no.such.host.invalid"),
    ):
        assert sentence in refused(*arguments, "--port", 0)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert f" --port {port} (Address already in use" in refused(folder, "--port", port)


@pytest.mark.full
def test_a_draft_adapter_is_served(checkpoint, tmp_path):
    """Verified it writes the text of its base; what streams shows that the adapter is there."""
    folder = save_adapter(tmp_path / "adapter", base=checkpoint[0])
    adapted = (folder, AutoModelForCausalLM.from_pretrained(folder), checkpoint[2])
    streaming = {"decoding": "streaming", **DEFAULTS}
    *_, streamed = generated(adapted, **streaming)
    assert streamed != generated(checkpoint, **streaming)[-1]
    with started_server(folder) as (_, port):
        answers = [
            chat(client_of(port), model="adapter", **settings).choices[0].message.content
            for settings in ({}, {"extra_body": {"generation_config": streaming}})
        ]
    assert answers == [generated(checkpoint, decoding="autoregressive")[-1], streamed]


def test_the_death_of_the_thread_ends_the_process(checkpoint, monkeypatch):
    monkeypatch.setattr(Scheduler, "__init__", lambda *_: {}["a bug"])
    result = CliRunner().invoke(app, ["serve", str(checkpoint[0]), "--port", "0", "--device", "cpu"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "The thread that generates has died (KeyError: 'a bug'), and the server has ended; start it again."
    )


def test_ctrl_c_before_uvicorn_waits_for_it_ends_the_engine_too(checkpoint, monkeypatch):
    def interrupted(self, sockets):
        assert self.engine.manager.is_running()
        engines.append(self.engine)
        raise KeyboardInterrupt

    engines = []
    monkeypatch.setattr(Server, "run", interrupted)
    result = CliRunner().invoke(app, ["serve", str(checkpoint[0]), "--port", "0", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert not engines[0].manager.is_running()


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "wedlm.serving.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "install wedlm with its extra 'serve', in a clone of it by pip install -e \".[serve]\"" in refused()


def test_events_are_sent_at_once():
    """Where TCP waits for more to send, a client gets its first token forty milliseconds later."""

    async def has_no_delay():
        taken = asyncio.get_running_loop().create_future()

        async def answer(reader, writer):
            taken.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(answer, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.close()
                return await taken

    assert asyncio.run(has_no_delay())
