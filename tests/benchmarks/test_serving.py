"""The benchmark of serving asks servers in processes of their own, and leaves none behind."""

import json
import sys
from argparse import Namespace

import pytest
from transformers import AutoTokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER

OURS, THEIRS, ALONE = "wedlm serve", "transformers serve", "generate()"

# A server that begins each answer with the last word of the question.
STUB = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

status, num_events = map(int, sys.argv[1:3])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "stub" and body["stream"] and body["temperature"] == 0
        word = body["messages"][-1]["content"].split()[-1]
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant"}, {"content": word}, {"content": " and so on"}]
        events = [{"choices": [{"delta": delta}]} for delta in deltas]
        events.append({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        for event in events[:num_events]:
            self.wfile.write(f"data: {json.dumps(event)}\\n\\n".encode())

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("serving")


@pytest.fixture
def started(benchmark, monkeypatch):
    """The processes of the servers that were started."""
    processes = []

    class Server(benchmark.Server):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            processes.append(self.process)

    monkeypatch.setattr(benchmark, "Server", Server)
    return processes


@pytest.fixture
def stubs(benchmark, monkeypatch):
    """Has both servers be stubs, which answer with a status and a number of events."""

    def stubs(status="200", num_events="4"):
        words = [sys.executable, "-c", STUB, status, num_events]
        monkeypatch.setattr(benchmark, "commands", lambda *arguments: dict.fromkeys((OURS, THEIRS), (words, "stub")))

    return stubs


SMALL = ("--models", "demo", "--equal-clients", 2, "--requests", 1, "--new-tokens", 6)


@pytest.mark.slow
def test_sides_take_turns_and_every_process_is_killed(run, benchmark, stubs, started, tmp_path, capsys):
    stubs()
    arguments = (*SMALL, "--clients", 1, 3, "--rounds", 2, "--work", tmp_path / "work")
    cells = run("serving", *arguments)["results"]
    assert [(cell["prompts"], cell["clients"], list(cell["sides"])) for cell in cells] == [
        ("mixed", 1, [OURS, THEIRS, ALONE]), ("mixed", 3, [OURS, THEIRS]), ("equal", 2, [OURS, ALONE])
    ]  # fmt: skip
    assert len(started) == 2 and all(process.returncode == -9 for process in started)
    for cell in cells:
        number = 4 if cell["prompts"] == "equal" else 16
        for side, numbers in cell["sides"].items():
            assert numbers["requests"] == number
            assert numbers["tokens"] == 6 * number if side != ALONE else numbers["tokens"] <= 6 * number
            assert 0 < numbers["tokens_per_second"]["min"] <= numbers["tokens_per_second"]["max"]
            assert 0 < numbers["seconds"]["median"] <= numbers["seconds"]["95_percent"]
            if side != ALONE:
                assert 0 < numbers["seconds_to_first_token"]["median"] < numbers["seconds"]["95_percent"]
    assert [cell.get("same_as_transformers") for cell in cells] == [
        {"same": 16, "texts": 16}, {"same": 16, "texts": 16}, None
    ]  # fmt: skip
    compared = [
        (side["same_as_generate"]["same"], side["same_as_generate"]["texts"]) for side in cells[1]["sides"].values()
    ]
    assert compared == [(0, 8), (0, 8)]  # in the first round
    assert cells[0]["sides"][ALONE]["same_as_generate"] == {"same": 16, "texts": 16}
    assert benchmark.table(cells) in capsys.readouterr().out
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")
    assert run("serving", *arguments)["results"] == cells and len(started) == 2  # nothing was left to measure


def test_after_an_error_every_process_is_killed_and_finished_rounds_stay(
    run, benchmark, stubs, started, tmp_path, monkeypatch
):
    stubs()
    arguments = (*SMALL, "--clients", 1, "--rounds", 2, "--work", tmp_path / "work")
    monkeypatch.setattr(benchmark.WorkFile, "add", failing_at(2, benchmark.WorkFile.add))
    with pytest.raises(KeyboardInterrupt):
        run("serving", *arguments)
    monkeypatch.undo()
    (work,) = (tmp_path / "work").iterdir()
    assert [json.loads(line)[0] for line in work.read_text().splitlines()] == [["demo", "mixed", 1, 1]]
    assert len(started) == 2 and all(process.returncode == -9 for process in started)


def failing_at(number, function):
    calls = []

    def called(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    return called


@pytest.mark.parametrize(
    ("status", "num_events", "message"),
    [("500", "4", "500"), ("200", "3", "ended without its usage"), ("nothing", "4", "does not answer")],
)
def test_a_server_that_fails_ends_the_benchmark(run, stubs, started, tmp_path, status, num_events, message):
    stubs(status, num_events)
    with pytest.raises((RuntimeError, ExceptionGroup)) as error:
        run("serving", *SMALL, "--clients", 1, "--rounds", 1, "--work", tmp_path / "work")
    said = error.value.exceptions[0] if isinstance(error.value, ExceptionGroup) else error.value
    assert message in f"{getattr(said, 'status_code', '')} {said}"  # which openai 1 leaves out of its message
    assert len(started) == 2 and all(process.returncode is not None for process in started)


def test_chats_are_short_and_long_and_never_the_same(benchmark):
    given = Namespace(clients=[1, 8], equal_clients=4, requests=2, rounds=2, long_tokens=200)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    for model in benchmark.MODELS:
        seen = []
        for cell in benchmark.cells_of(model, given):
            for number in range(given.rounds + 1):
                chats = benchmark.chats_of(cell, number, tokenizer, given)
                assert chats == benchmark.chats_of(cell, number, tokenizer, given)
                seen += chats[:1] if cell.prompts == "equal" else chats
        assert len(seen) == 3 * (8 + 16 + 1) == len({json.dumps(chat) for chat in seen})
        assert 20 < sum(len(chat) > 1 for chat in seen) < 55


@pytest.mark.slow
def test_both_servers_write_the_texts_of_generate(run, started, tmp_path):
    cells = run("serving", *SMALL, "--clients", 2, "--rounds", 1, "--work", tmp_path / "work")["results"]
    assert cells[0]["same_as_transformers"] == {"same": 8, "texts": 8}
    for cell in cells:
        for numbers in cell["sides"].values():
            same = numbers["same_as_generate"]
            assert same["same"] == same["texts"] == numbers["requests"]
            assert numbers["tokens"] == next(iter(cell["sides"].values()))["tokens"]
    assert len(started) == 2 and all(process.returncode == -9 for process in started)
