"""The entry points of the package, each with what a user sees there: the reference's text, or one sentence.

An entry point takes a `Loaded` model and the name of a decoding, and asserts. A refusal is raised as a ValueError that
holds the sentence, whether it was an error, a status 400 or a line on standard error.
"""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from command_line import run
from decoded import Recorder
from evaluations import DEMO_TASKS
from fastapi import HTTPException
from helpers import run_python
from model_kinds import NEW_TOKENS, SAME_TEXT, Kind, Loaded
from serving_client import post, started_server
from transformers import DynamicCache, pipeline

from wedlm.batching.manager import BatchingManager
from wedlm.generation.transformers_internals import CACHE
from wedlm.hub_card import export
from wedlm.serving.engine import Engine
from wedlm.serving.protocol import ChatRequest, CompletionRequest
from wedlm.serving.requests import ServedModel
from wedlm.serving.routes import respond
from wedlm.serving.server_metrics import RequestRecord

PROMPTS = ["Count by 5 from 10 to 60.", "So", "abcabcabcabc abc", "Solve 3x + 7 = 22."]
PROMPT = PROMPTS[0]
SAMPLED = {"do_sample": True, "temperature": 1.5, "top_k": 20}


def chat_of(prompt: str) -> list[dict]:
    return [{"role": "user", "content": prompt}]


def named(decoding: str) -> dict[str, str]:
    return {} if decoding == "default" else {"decoding": decoding}


def generate(loaded: Loaded, prompts: list[list[int]], decoding: str, **arguments) -> list[list[int]] | object:
    """The new ids of each row of a ragged batch, without its padding; the output, if it is asked for."""
    width, pad = max(map(len, prompts)), loaded.tokenizer.pad_token_id
    rows = torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    call = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": pad, **named(decoding), **arguments}
    output = loaded.model.generate(rows, attention_mask=mask, **call)
    return (
        output
        if call.get("return_dict_in_generate")
        else [unpadded(loaded, row) for row in output[:, width:].tolist()]
    )


def unpadded(loaded: Loaded, ids: list[int]) -> list[int]:
    """The ids up to an end token."""
    ends = loaded.model.generation_config.eos_token_id
    return next((ids[: i + 1] for i, token in enumerate(ids) if token == ends), ids)


# --- generate() ---


def greedy(loaded: Loaded, decoding: str) -> None:
    ids = loaded.ids(chat_of(PROMPT))
    assert generate(loaded, [ids], decoding) == [loaded.expected(ids, decoding)]


def sampled(loaded: Loaded, decoding: str) -> None:
    """A seed gives the text that it gives token by token; where slots are filled, it gives one text."""
    ids, seed = loaded.ids(chat_of(PROMPT)), torch.manual_seed
    seed(3)
    got = generate(loaded, [ids], decoding, **SAMPLED)
    seed(3)
    expected = loaded.expected(ids, decoding, **SAMPLED) if decoding in SAME_TEXT else None
    assert got == ([expected] if expected else generate(loaded, [ids], decoding, **SAMPLED))


def ragged_batch(loaded: Loaded, decoding: str) -> None:
    prompts = [loaded.ids(chat_of(prompt)) for prompt in PROMPTS]
    assert generate(loaded, prompts, decoding) == [loaded.expected(ids, decoding) for ids in prompts]


def streamer(loaded: Loaded, decoding: str) -> None:
    recorder, ids = Recorder(), loaded.ids(chat_of(PROMPT))
    generate(loaded, [ids], decoding, streamer=recorder)
    prompt, *parts = recorder.of("put")
    assert prompt[0] == ids and sum(parts, []) == loaded.expected(ids, decoding)
    assert recorder.calls[-1] == ("end", None)


def stop_strings(loaded: Loaded, decoding: str) -> None:
    ids = loaded.ids(chat_of(PROMPTS[2]))
    whole = loaded.expected(ids, decoding)
    stop = loaded.text(whole[2:4])
    expected = next(whole[:n] for n in range(1, len(whole) + 1) if stop in loaded.text(whole[:n]))
    assert generate(loaded, [ids], decoding, stop_strings=[stop], tokenizer=loaded.tokenizer) == [expected]


def continued_cache(loaded: Loaded, decoding: str) -> None:
    ids, cache = loaded.ids(chat_of(PROMPT)), DynamicCache()
    first = generate(loaded, [ids], decoding, max_new_tokens=6, return_dict_in_generate=True, **{CACHE: cache})
    longer = first.sequences[0].tolist() + loaded.ids("and")
    assert generate(loaded, [longer], decoding, **{CACHE: first[CACHE]}) == [loaded.expected(longer, decoding)]


def with_pipeline(loaded: Loaded, decoding: str) -> None:
    ask = pipeline("text-generation", model=loaded.model, tokenizer=loaded.tokenizer)
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **named(decoding)}
    (answer,) = ask(chat_of(PROMPT), **settings)
    expected = loaded.text(loaded.expected(loaded.ids(chat_of(PROMPT)), decoding))
    assert answer["generated_text"][-1]["content"] == expected


# --- A running batch ---


def generate_batch(loaded: Loaded, decoding: str) -> None:
    prompts = [loaded.ids(chat_of(prompt)) for prompt in PROMPTS]
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **named(decoding)}
    outputs = loaded.model.generate_batch(prompts, **settings)
    got = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    assert got == {tuple(ids): loaded.expected(ids, decoding) for ids in prompts}


def manager(loaded: Loaded, decoding: str) -> None:
    """Greedy and sampled requests in one batch, as the server makes it."""
    batch = BatchingManager(loaded.model)
    batch.start()
    try:
        prompts = [loaded.ids(chat_of(prompt)) for prompt in PROMPTS]
        for number, ids in enumerate(prompts):
            drawn = {**SAMPLED, "seed": number} if number % 2 else {"do_sample": False}
            batch.add_request(ids, f"{number}", max_new_tokens=NEW_TOKENS, **named(decoding), **drawn)
        outputs = {output.request_id: output for output in (batch.get_result(timeout=60) for _ in prompts)}
    finally:
        batch.stop(block=True)
    for number, ids in enumerate(prompts):
        output = outputs[f"{number}"]
        assert output.error is None
        if number % 2 == 0:
            assert output.generated_tokens == loaded.expected(ids, decoding)
        elif decoding in SAME_TEXT:
            torch.manual_seed(number)
            assert output.generated_tokens == loaded.expected(ids, decoding, **SAMPLED)


# --- The server ---

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "parameters": NUMBER}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "number", "schema": NUMBER}}


def served(loaded: Loaded, decoding: str, number: int = 1, kind=ChatRequest, **fields) -> list[dict]:
    """The answers to equal requests that arrive at once; of a stream the events."""
    body = {"messages": chat_of(PROMPT)} if kind is ChatRequest else {"prompt": PROMPT}
    body |= {"max_tokens": NEW_TOKENS, "temperature": 0, "generation_config": named(decoding), **fields}

    async def ask(model: ServedModel, engine: Engine) -> dict | list[dict]:
        try:
            response = await respond(model, engine, kind, body, RequestRecord("POST", "/"))
        except HTTPException as error:
            assert error.status_code == 400, error.detail
            raise ValueError(error.detail) from None
        if not body.get("stream"):
            return json.loads(response.body)
        text = "".join([event async for event in response.body_iterator])
        return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]

    async def story() -> list[dict]:
        model, engine = ServedModel("model", *loaded.from_folder, 0), Engine(loaded.from_folder[0], 8, None, 8)
        model.grammars = loaded.grammars  # a process that compiles for all
        engine.manager.start()
        try:
            return await asyncio.gather(*(ask(model, engine) for _ in range(number)))
        finally:
            await asyncio.to_thread(engine.stop)

    return asyncio.run(asyncio.wait_for(story(), 100))


def expected_answer(loaded: Loaded, decoding: str) -> str:
    return loaded.text(loaded.expected(loaded.ids(chat_of(PROMPT)), decoding))


def served_chat(loaded: Loaded, decoding: str) -> None:
    answers = served(loaded, decoding, number=3)
    assert [each["choices"][0]["message"]["content"] for each in answers] == [expected_answer(loaded, decoding)] * 3


def served_stream(loaded: Loaded, decoding: str) -> None:
    (events,) = served(loaded, decoding, stream=True)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert text == expected_answer(loaded, decoding)


def served_completion(loaded: Loaded, decoding: str) -> None:
    (answer,) = served(loaded, decoding, kind=CompletionRequest)
    assert answer["choices"][0]["text"] == loaded.text(loaded.expected(loaded.ids(PROMPT), decoding))


def served_n(loaded: Loaded, decoding: str) -> None:
    """Each answer has the next seed."""
    ids, texts = loaded.ids(chat_of(PROMPT)), []
    for seed in (5, 6):
        torch.manual_seed(seed)
        call = {"do_sample": True, "temperature": 0.9}
        new = loaded.expected(ids, decoding, **call) if decoding in SAME_TEXT else generate(
            loaded, [ids], decoding, **call
        )[0]  # fmt: skip
        texts.append(loaded.text(new))
    (answer,) = served(loaded, decoding, temperature=0.9, seed=5, n=2)
    assert [choice["message"]["content"] for choice in answer["choices"]] == texts


def served_schema(loaded: Loaded, decoding: str) -> None:
    (answer,) = served(loaded, decoding, response_format=SCHEMA, max_tokens=60)
    (choice,) = answer["choices"]
    check_json(choice["message"]["content"], choice["finish_reason"])


def served_tool(loaded: Loaded, decoding: str) -> None:
    (answer,) = served(loaded, decoding, tools=[TOOL], tool_choice="required", max_tokens=120)
    (choice,) = answer["choices"]
    if choice["finish_reason"] == "length":  # in the digits of a number
        assert re.match(r'<tool_call>\s*\{"name": "add", "arguments": \{"n": -?\d+', choice["message"]["content"])
    else:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "add"
        check_json(call["function"]["arguments"], "stop")


def check_json(text: str, finish_reason: str) -> None:
    if finish_reason == "length":  # in the digits of a number
        assert re.fullmatch(r'\{"n": -?\d+', text), text
    else:
        (value,) = json.loads(text).values()
        assert type(value) is int and "n" in json.loads(text)


def served_logprobs(loaded: Loaded, decoding: str) -> None:
    (answer,) = served(loaded, decoding, logprobs=True, top_logprobs=2)
    (choice,) = answer["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in tokens).startswith(choice["message"]["content"])
    assert all(each["logprob"] == each["top_logprobs"][0]["logprob"] for each in tokens), "greedy takes the likeliest"
    if decoding in SAME_TEXT:
        assert choice["message"]["content"] == expected_answer(loaded, decoding)


# --- Commands ---


def command(loaded: Loaded, decoding: str, name: str, *words: object, **options):
    """The result of a command with the model's folder; a refusal is one line on standard error, and nothing else."""
    chosen = () if decoding == "default" else ("--decoding", decoding)
    result = run(name, loaded.folder, *words, *loaded.kind.options, *chosen, **options)
    if result.exit_code == 2:
        *bars, sentence = result.stderr.splitlines()
        assert result.stdout == "" and all("it/s]" in line for line in bars), result.output
        raise ValueError(sentence)
    assert result.exit_code == 0, result.output
    return result


def answering(loaded: Loaded, decoding: str, name: str, *words: object, **options):
    return command(loaded, decoding, name, *words, "--max-new-tokens", NEW_TOKENS, **options)


def command_generate(loaded: Loaded, decoding: str) -> None:
    assert answering(loaded, decoding, "generate", PROMPT).stdout == expected_answer(loaded, decoding) + "\n"


def command_chat(loaded: Loaded, decoding: str) -> None:
    result = answering(loaded, decoding, "chat", input=f"{PROMPT}\n")
    assert result.stdout == expected_answer(loaded, decoding) + "\n"


def command_compare(loaded: Loaded, decoding: str) -> None:
    """Beside decoding token by token, or all that the model offers."""
    result = answering(loaded, decoding, "compare", PROMPT)
    told = loaded.kind.decodings if decoding == "default" else (decoding, "autoregressive")
    for name in {*told} - {"default", "blockwise"} | {decoding} - {"default"}:
        assert f":\n{expected_answer(loaded, name)}\n" in result.stdout and name in result.stdout


def command_trace(loaded: Loaded, decoding: str) -> None:
    """The text is what stands before the bars."""
    lines = answering(loaded, decoding, "trace", PROMPT).stdout.splitlines()
    final = [line.partition(" │ ")[0].lstrip().partition(" ")[2] for line in lines if " │ " in line]
    blanks = r"\s|⏎|<\|?\w+\|?>"  # and end tokens
    assert re.sub(blanks, "", "".join(final)) == re.sub(blanks, "", expected_answer(loaded, decoding))


def command_info(loaded: Loaded, decoding: str) -> None:
    """It lists the decodings that the model has, and none else."""
    result = run("info", loaded.folder)
    if result.exit_code == 2:
        raise ValueError(result.stderr.strip())
    (line,) = re.findall(r"^decodings +(.*)$", result.stdout, re.MULTILINE)
    assert set(line.split(", ")) == {*loaded.kind.decodings} - {"default"}


def command_eval(loaded: Loaded, decoding: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "eval.json"
        words = ["--tasks", "demo_counting", "--include-path", DEMO_TASKS, "--limit", 1, "--out", file]
        command(loaded, decoding, "eval", *words, "--max-new-tokens", NEW_TOKENS)
        (result,) = json.loads(file.read_text())["results"]
    assert decoding in ("default", result["arguments"].get("decoding")) and 0 < result["num_tokens"] <= NEW_TOKENS


def command_tune(loaded: Loaded, decoding: str) -> None:
    """It tries no decoding that the model does not have."""
    with TemporaryDirectory() as folder:
        data, out = Path(folder) / "data.jsonl", Path(folder) / "tune.json"
        data.write_text(json.dumps({"prompt": PROMPT}))
        command(loaded, "default", "tune", "--data", data, "--out", out, "--dry-run", "--max-new-tokens", NEW_TOKENS)
        tried = {label.partition(",")[0] for label in json.loads(out.read_text())["results"]}
    assert tried == {*loaded.kind.decodings} - {"default", "blockwise"}


def command_serve(loaded: Loaded, decoding: str) -> None:
    """The server in a process of its own."""
    chosen = () if decoding == "default" else ("--decoding", decoding)
    try:
        with started_server(loaded.folder, *loaded.kind.options, *chosen) as (_, port):
            body = {"messages": chat_of(PROMPT), "temperature": 0, "max_tokens": NEW_TOKENS}
            _, answer = post(port, "/v1/chat/completions", body)
    except AssertionError as error:  # it does not start, and says why
        raise ValueError(str(error).partition("\n")[0]) from None
    assert json.loads(answer)["choices"][0]["message"]["content"] == expected_answer(loaded, decoding)


# --- A repository on the Hub, where this package is not ---

WITHOUT_THE_PACKAGE = """
import json, torch
from transformers import AutoModelForCausalLM
way = {"trust_remote_code": True}
model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, **way)
tokens = torch.tensor([IDS])
if REPOSITORY is not None:
    SETTINGS |= {"custom_generate": REPOSITORY, **way}
try:
    call = {"attention_mask": torch.ones_like(tokens), "do_sample": False, **SETTINGS}
    print("ids:", model.generate(tokens, **call)[0, len(IDS):].tolist())
except ValueError as error:
    print("refused:", error)
"""


def on_the_hub(loaded: Loaded, decoding: str) -> None:
    """`wedlm export`, and its result where there are transformers and torch alone, in place of the card's snippet."""
    ids = loaded.ids(chat_of(PROMPT))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        licence = ("--license", "apache-2.0", "--base-model", "somebody/base")
        words = ("--strategy", out) if loaded.is_stock else (loaded.folder, out, *licence)
        with patch.object(export, "run_snippet"):
            result = run("export", *words)
        assert result.exit_code == 0, result.output
        given = {
            "CHECKPOINT": str(loaded.base if loaded.is_stock else out),
            "REPOSITORY": str(out) if loaded.is_stock else None,
            "IDS": ids,
            "SETTINGS": {"max_new_tokens": NEW_TOKENS, **named(decoding)},
        }
        code = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + WITHOUT_THE_PACKAGE
        printed = run_python(code, Path(folder), wedlm=False)
    if refusal := re.search(r"^refused: (.*)$", printed, re.MULTILINE):
        raise ValueError(refusal[1])
    (line,) = re.findall(r"^ids: (.*)$", printed, re.MULTILINE)
    assert json.loads(line) == loaded.expected(ids, decoding)


# --- The list ---


@dataclass(frozen=True)
class EntryPoint:
    """An entry point; `column` is its column in docs/reference/generate.md, if it has one.

    `is_alone` says that its text has forwards of its own, token by token of the same shapes as in verified decoding.
    """

    name: str
    column: str
    run: Callable[[Loaded, str], None]
    takes: Callable[[Kind], bool] = lambda kind: True
    is_dear: bool = False  # it takes seconds
    is_alone: bool = False


def is_folder(kind: Kind) -> bool:
    return kind.options is not None


GENERATE, BATCH, SERVE, WRITE, MEASURE, HUB = (
    "`generate()`, pipelines",
    "`generate_batch()`, managers",
    "`wedlm serve`",
    "`wedlm generate`, `chat`, `compare`, `trace`",
    "`wedlm eval`, `tune`",
    "`wedlm export`; the result runs without this package",
)
# `wedlm convert`, `train`, `merge` and `adapt` are not among them: they take no decoding.
ENTRY_POINTS = [
    EntryPoint("greedy", GENERATE, greedy, is_alone=True),
    EntryPoint("sampled", GENERATE, sampled),
    EntryPoint("a ragged batch", GENERATE, ragged_batch),
    EntryPoint("a streamer", GENERATE, streamer, is_alone=True),
    EntryPoint("stop strings", GENERATE, stop_strings, is_alone=True),
    EntryPoint("a cache continued", GENERATE, continued_cache),
    EntryPoint("a pipeline", GENERATE, with_pipeline, is_alone=True),
    EntryPoint("generate_batch()", BATCH, generate_batch),
    EntryPoint("a manager", BATCH, manager),
    EntryPoint("served chat", SERVE, served_chat, is_folder),
    EntryPoint("served stream", SERVE, served_stream, is_folder),
    EntryPoint("served completion", SERVE, served_completion, is_folder),
    EntryPoint("served n", SERVE, served_n, is_folder),
    EntryPoint("served schema", SERVE, served_schema, is_folder),
    EntryPoint("served tool", SERVE, served_tool, is_folder),
    EntryPoint("served logprobs", SERVE, served_logprobs, is_folder),
    EntryPoint("wedlm serve", SERVE, command_serve, is_folder, is_dear=True),
    EntryPoint("wedlm generate", WRITE, command_generate, is_folder, is_alone=True),
    EntryPoint("wedlm chat", WRITE, command_chat, is_folder, is_alone=True),
    EntryPoint("wedlm compare", WRITE, command_compare, is_folder, is_alone=True),
    EntryPoint("wedlm trace", WRITE, command_trace, is_folder, is_alone=True),
    EntryPoint("wedlm info", "", command_info, is_folder, is_alone=True),
    EntryPoint("wedlm eval", MEASURE, command_eval, is_folder, is_dear=True),
    EntryPoint("wedlm tune", MEASURE, command_tune, is_folder, is_dear=True),
    EntryPoint("wedlm export", HUB, on_the_hub, is_folder, is_dear=True),
]
