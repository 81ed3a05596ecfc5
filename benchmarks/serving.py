"""Does `wedlm serve` answer many clients faster than `transformers serve --continuous-batching`, on the same weights?

    python benchmarks/serving.py [--models demo adapter] [--clients 1 8 32 64] [--new-tokens 64] [--rounds 3]
                                 [--out benchmarks/results/serving.json]

`demo` is the demo checkpoint, beside it as plain Qwen3; `adapter` is SmolLM2-135M-Instruct with the draft adapter of
`hub_card/`, beside the stock model (`make real-model` makes both). Every client streams its answers one after another,
greedily. Half of the prompts are held-out questions, half are chats of about --long-tokens tokens with such a question
behind earlier turns; each round has prompts of its own. Both servers run all the time, take turns in every round, and
are stopped by a signal while they have no turn. A first round warms up.

`wedlm serve` packs the weights on a CPU, transformers' server does not.

At the smallest number of clients generate() in this process takes turns too, one prompt after another, with packed
weights on a CPU. In the cells "equal" --equal-clients clients all ask the same, once, beside one batch of generate().
Texts are counted that are the same as those of the other server, and in the first round of each cell as those of
generate() alone. A run that was stopped goes on.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import openai
import torch
from common import ADAPTER, STOCK, Panel, chat, markdown, median_and_range, new_parser, question, save, with_range
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.drafts.prompts import all_prompts
from wedlm.evaluation.provenance import conditions
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.work_file import WorkFile, resumable

OURS, THEIRS, ALONE = "wedlm serve", "transformers serve", "generate()"
MODELS = ("demo", "adapter")
MIXED, EQUAL = "mixed", "equal"
FEWEST_REQUESTS = 8  # of a round
READY_SECONDS = 600

Chat = list[dict[str, str]]


class Answer(NamedTuple):
    text: str
    tokens: int
    first: float | None  # seconds to the first text; None where it was not measured
    seconds: float


class Answers(NamedTuple):
    answers: list[Answer]
    seconds: float  # from the first request to the last answer


class Cell(NamedTuple):
    model: str
    prompts: str  # MIXED or EQUAL
    clients: int


# --- Prompts ---


@cache
def adapter_questions() -> list[str]:
    """All held-out prompts of `wedlm adapt`."""
    return [prompt.text for prompt in all_prompts()["held_out"]]


def new_chat(model: str, tokenizer: PreTrainedTokenizerBase, number: int, length: int) -> Chat:
    """The chat with this number, with as many earlier turns as fit into `length` tokens."""
    last = question(number) if model == "demo" else adapter_questions()[number % len(adapter_questions())]
    return chat(tokenizer, number, length, last)


def is_long(number: int) -> bool:
    return Random(f"long {number}").random() < 0.5


def cells_of(model: str, given: argparse.Namespace) -> list[Cell]:
    return [*(Cell(model, MIXED, clients) for clients in given.clients), Cell(model, EQUAL, given.equal_clients)]


def num_chats(cell: Cell, given: argparse.Namespace) -> int:
    """The number of different chats in a round."""
    return 1 if cell.prompts == EQUAL else max(cell.clients * given.requests, FEWEST_REQUESTS)


def chats_of(
    cell: Cell, round_number: int, tokenizer: PreTrainedTokenizerBase, given: argparse.Namespace
) -> list[Chat]:
    """The chats of a round, which no other round and no other cell of the model has."""
    cells = cells_of(cell.model, given)
    before = sum(num_chats(each, given) for each in cells[: cells.index(cell)]) * (given.rounds + 1)
    start = before + num_chats(cell, given) * round_number
    if cell.prompts == EQUAL:
        return [new_chat(cell.model, tokenizer, start, 0)] * cell.clients
    numbers = range(start, start + num_chats(cell, given))
    return [new_chat(cell.model, tokenizer, i, given.long_tokens if is_long(i) else 0) for i in numbers]


# --- Servers ---


class Server:
    """A server in a process of its own, on a free port; it sleeps except for its turns.

    Args:
        words (`list[str]`): The command without the port.
        model (`str`): The name by which requests call its model.
        log (`Path`): The file for what it prints.
    """

    def __init__(self, words: list[str], model: str, log: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.model, self.log = model, log
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [*words, "--port", str(self.port)],
                stdout=file,
                stderr=file,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # Ctrl-C is for this process, which then kills that one.
            )

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(self.process.args)} does not answer:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def sleep(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.sleep()

    def answer(self, chats: list[Chat], clients: int, new_tokens: int) -> Answers:
        """Answers the chats in the order in which they were given."""
        with self.turn():
            return asyncio.run(self.answer_clients(chats, clients, new_tokens))

    async def answer_clients(self, chats: list[Chat], clients: int, new_tokens: int) -> Answers:
        answers: list[Answer | None] = [None] * len(chats)

        async def be_client(number: int) -> None:
            for place in range(number, len(chats), clients):
                answers[place] = await self.ask(client, chats[place], new_tokens)

        url = f"http://127.0.0.1:{self.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=3600) as client:
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    group.create_task(be_client(number))
            return Answers(answers, time.perf_counter() - start)

    async def ask(self, client: openai.AsyncOpenAI, messages: Chat, new_tokens: int) -> Answer:
        """Streams an answer. (Lines are read as they are: the client's objects would cost the servers' time.)"""
        texts, tokens, first, start = [], None, None, time.perf_counter()
        create = client.chat.completions.with_streaming_response.create
        async with create(
            model=self.model,
            messages=messages,
            temperature=0,
            max_tokens=new_tokens,
            stream=True,
            stream_options={"include_usage": True},
        ) as response:
            async for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(f"{self.model}: {event['error']}")
                for choice in event["choices"]:
                    if text := choice["delta"].get("content"):
                        first = first or time.perf_counter() - start
                        texts.append(text)
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
        if tokens is None:
            raise RuntimeError(f"{self.model}: an answer ended without its usage.")
        seconds = time.perf_counter() - start
        return Answer("".join(texts), tokens, first or seconds, seconds)


def commands(model: str, given: argparse.Namespace, folder: Path) -> dict[str, tuple[list[str], str]]:
    """The command of each server without its port, and the name by which requests call its model."""
    ours, stock = (DEMO_FOLDER, folder / "plain") if model == "demo" else (given.adapter, given.stock)
    if model == "demo":
        convert_to_autoregressive(ours, stock)
    same = ["--host", "127.0.0.1", "--device", device_of(), "--dtype", given.dtype]
    wedlm, transformers = ([sys.executable, "-m", name] for name in ("wedlm", "transformers.cli.transformers"))
    return {
        OURS: ([*wedlm, "serve", str(ours), "--decoding", "verified", *same], ours.resolve().name),
        THEIRS: ([*transformers, "serve", str(stock), "--continuous-batching", *same], str(stock)),
    }


@contextmanager
def both_servers(model: str, given: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """Both servers, asleep; they are killed in the end, whatever happens."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {}
        for side, (words, name) in commands(model, given, Path(folder)).items():
            servers[side] = Server(words, name, Path(folder, f"{side}.log"))
            stack.callback(servers[side].kill)
        for server in servers.values():
            server.wait_until_ready()
        for server in servers.values():
            server.sleep()
        yield servers


def device_of() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


# --- generate() ---


class Alone:
    """The model in this process."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer = model, tokenizer

    def batch(self, chats: list[Chat], new_tokens: int) -> list[Answer]:
        """Answers chats of equal lengths in one call."""
        start = time.perf_counter()
        inputs = self.tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        ).to(self.model.device)
        output = self.model.generate(
            **inputs,
            decoding="verified",
            max_new_tokens=new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
        )
        new = output.sequences[:, inputs["input_ids"].shape[1] :]
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        seconds = time.perf_counter() - start
        numbers = (output.tokens_per_forward * output.forwards).round().int().tolist()
        return [Answer(text, tokens, None, seconds) for text, tokens in zip(texts, numbers, strict=True)]

    def answer_in_turn(self, chats: list[Chat], clients: int, new_tokens: int) -> Answers:
        start = time.perf_counter()
        answers = [answer for each in chats for answer in self.batch([each], new_tokens)]
        return Answers(answers, time.perf_counter() - start)

    def answer_at_once(self, chats: list[Chat], clients: int, new_tokens: int) -> Answers:
        start = time.perf_counter()
        return Answers(self.batch(chats, new_tokens), time.perf_counter() - start)


# --- Measuring ---


def calls_of(cell: Cell, servers: dict[str, Server], alone: Alone, given: argparse.Namespace) -> dict[str, Callable]:
    """What takes turns in a cell, by its name."""
    if cell.prompts == EQUAL:
        return {OURS: servers[OURS].answer, ALONE: alone.answer_at_once}
    calls = {side: server.answer for side, server in servers.items()}
    return calls | ({ALONE: alone.answer_in_turn} if cell.clients == min(given.clients) else {})


def rounds_left(cell: Cell, given: argparse.Namespace, work: WorkFile) -> list[int]:
    return [number for number in range(1, given.rounds + 1) if (*cell, number) not in work]


def measure(cell: Cell, servers: dict[str, Server], alone: Alone, given: argparse.Namespace, work: WorkFile) -> None:
    """Measures the rounds of a cell that `work` does not have yet, behind one that warms up."""
    calls = calls_of(cell, servers, alone, given)
    for number in (0, *rounds_left(cell, given, work)):
        chats = chats_of(cell, number, alone.tokenizer, given)
        turns = {side: partial(call, chats, cell.clients, given.new_tokens) for side, call in calls.items()}
        taken = {turn.name: turn.result for turn in interleaved(turns, "cpu", 1, 0, first=number % len(turns))}
        sides = {side: taken[side] for side in calls}
        if number > 0:
            work.add((*cell, number), {"sides": sides, "alone": texts_alone(number, chats, sides, alone, given)})


def texts_alone(
    number: int, chats: list[Chat], sides: dict[str, Answers], alone: Alone, given: argparse.Namespace
) -> list[str] | None:
    """The texts of generate() for the chats of a round; they are written for the first round of each cell."""
    if ALONE in sides:
        return [answer.text for answer in sides[ALONE].answers]
    return (
        [answer.text for answer in alone.answer_in_turn(chats, 1, given.new_tokens).answers] if number == 1 else None
    )


def spread(values: list[float]) -> dict[str, float]:
    median, late = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.5, 0.95]).double()).tolist()
    return {"median": median, "95_percent": late}


def summary(cell: Cell, rounds: list[dict]) -> dict[str, Any]:
    """The numbers of a cell, from its rounds as the work file has them."""
    sides, texts = {}, {}
    for side in rounds[0]["sides"]:
        of_rounds = [
            Answers([Answer(*each) for each in answers], seconds)
            for answers, seconds in (each["sides"][side] for each in rounds)
        ]
        answers = [answer for each in of_rounds for answer in each.answers]
        texts[side] = [[answer.text for answer in each.answers] for each in of_rounds]
        speeds = [sum(answer.tokens for answer in each.answers) / each.seconds for each in of_rounds]
        sides[side] = {
            "tokens_per_second": median_and_range(speeds),
            "seconds_to_first_token": None if side == ALONE else spread([answer.first for answer in answers]),
            "seconds": spread([answer.seconds for answer in answers]),
            "requests": len(answers),
            "tokens": sum(answer.tokens for answer in answers),
        }
    alone = [each["alone"] for each in rounds]
    for side in sides:
        sides[side]["same_as_generate"] = same_texts(texts[side], alone)
    same = {"same_as_transformers": same_texts(texts[OURS], texts[THEIRS])} if THEIRS in texts else {}
    return cell._asdict() | same | {"sides": sides}


def same_texts(ones: list[list[str]], others: list[list[str] | None]) -> dict[str, int]:
    """How many texts of the rounds that both have are the same."""
    pairs = [pair for one, other in zip(ones, others, strict=True) if other for pair in zip(one, other, strict=True)]
    return {"same": sum(one == other for one, other in pairs), "texts": len(pairs)}


# --- Tables and plots ---


def table(cells: list[dict]) -> str:
    """For docs/reference/serve.md."""
    lines = [
        [
            cell["model"],
            cell["prompts"],
            cell["clients"],
            side,
            with_range(numbers["tokens_per_second"], ".0f"),
            with_late(numbers["seconds_to_first_token"]),
            with_late(numbers["seconds"]),
            share(numbers["same_as_generate"]),
            share(cell["same_as_transformers"]) if side == OURS and "same_as_transformers" in cell else "",
        ]
        for cell in cells
        for side, numbers in cell["sides"].items()
    ]
    names = ["model", "prompts", "clients", "server", "tokens/s (min - max)"]
    more = ["first token (95 %), s", "whole answer (95 %), s", "same text as generate()", "same text as transformers"]
    return markdown([*names, *more], lines, left={"model", "prompts", "server"})


def with_late(numbers: dict[str, float] | None) -> str:
    return "" if numbers is None else f"{numbers['median']:.2f} ({numbers['95_percent']:.2f})"


def share(same: dict[str, int]) -> str:
    return f"{same['same']} of {same['texts']}"


def panels(cells: list[dict]) -> list[Panel]:
    """Two panels for each model: the speed and the first token."""
    shown = []
    for model in dict.fromkeys(cell["model"] for cell in cells):
        mixed = [cell for cell in cells if cell["model"] == model and cell["prompts"] == MIXED]
        for label, field in (
            ("tokens per second", "tokens_per_second"),
            ("seconds to the first token", "seconds_to_first_token"),
        ):
            lines = {
                side: [(cell["clients"], cell["sides"][side][field]["median"]) for cell in mixed]
                for side in (OURS, THEIRS)
            }
            shown.append(Panel(model, "clients", label, lines))
    return shown


def main() -> None:
    parser = new_parser(__doc__, "serving")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--equal-clients", type=int, default=32, help="clients that all ask the same")
    parser.add_argument(
        "--requests", type=int, default=2, help=f"of each client; a round has {FEWEST_REQUESTS} at least"
    )
    parser.add_argument("--long-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/serving"), help="where finished rounds are kept")
    given = parser.parse_args()
    about = {name: value for name, value in vars(given).items() if name not in ("out", "work", "models")}
    about = json.loads(json.dumps(about, default=str))
    work = WorkFile(given.work, {**about, **conditions(device_of(), ["openai"])})
    cells = {model: cells_of(model, given) for model in given.models}
    with resumable(work), tqdm(total=sum(map(len, cells.values())), unit=" cells") as bar:
        for model in given.models:
            left = [cell for cell in cells[model] if rounds_left(cell, given, work)]
            bar.update(len(cells[model]) - len(left))
            if left:
                with both_servers(model, given) as servers:
                    checkpoint = DEMO_FOLDER if model == "demo" else given.adapter
                    alone = Alone(*load_checkpoint(checkpoint, given.dtype, device_of(), only_decodes=True))
                    for cell in left:
                        measure(cell, servers, alone, given, work)
                        bar.update()
    results = [
        summary(cell, [work[*cell, number] for number in range(1, given.rounds + 1)])
        for model in given.models
        for cell in cells[model]
    ]
    print(table(results))
    save(given.out, results, device_of(), panels(results), **about)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whatever ends this process kills the servers
    main()
