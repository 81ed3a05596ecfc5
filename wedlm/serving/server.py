"""`wedlm serve`: one WeDLM model behind transformers' own OpenAI-compatible server.

Routes, formats and the thread that generates are transformers'. Here stands what differs: the model is that of the
command line, settings of a request are added to its own, tokens committed together are one event, stop strings are cut
off, a seed holds for its request alone, and refusals are sentences.
"""

import asyncio
import json
import math
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from inspect import signature
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from jinja2 import TemplateError
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers import GenerationConfig, PreTrainedTokenizerBase, logging
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import (
    DirectStreamer,
    GenerateManager,
    GenerationState,
    _GenerationCancelled,
    _StreamError,
)

from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.support import DEFAULTS, check_parameters
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

logger = logging.get_logger(__name__)

NUMBERS = {  # kind, least, most
    "temperature": (float, 0, math.inf),
    "top_p": (float, 0, 1),
    "frequency_penalty": (float, -2, 2),
    "max_tokens": (int, 1, math.inf),
    "max_completion_tokens": (int, 1, math.inf),
    "seed": (int, -(2**63), 2**63 - 1),
}
GRACE_SECONDS = 3  # for the last answers to reach their clients
FAILED, ENDING = "The server failed; its log says how.", "The server is ending."
STATUS_OF = {FAILED: 500, ENDING: 503}  # any other refusal is the fault of the request: 400
DONE = "data: [DONE]\n\n"  # which many clients wait for


class OneModel(ModelManager):
    """The model of the command line, loaded already; no request can load another."""

    def __init__(self, name: str, model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer, self.created = model, tokenizer, int(time.time())
        super().__init__(force_model=name)

    @staticmethod
    def process_model_name(model_id: str) -> str:
        return model_id

    def load_model_and_processor(self, model_id_and_revision: str, progress_callback=None, **kwargs):
        if model_id_and_revision != self.force_model:
            raise ValueError(f"This server has {self.force_model} only, not {model_id_and_revision}.")
        if progress_callback is not None:
            progress_callback({"status": "ready", "model": self.force_model, "cached": True})
        return self.model, self.tokenizer

    def get_gen_models(self) -> list[dict]:
        return [{"id": self.force_model, "object": "model", "created": self.created, "owned_by": "wedlm"}]


class Requests:
    """What the handlers of both routes do beyond transformers'."""

    events_before_text = 0

    async def handle_request(self, body: dict, request_id: str):
        try:
            response = await super().handle_request(body, request_id)
        except (ValueError, TemplateError) as error:  # generate() refuses with a ValueError
            raise HTTPException(400, sentence_of(error)) from error
        except _GenerationCancelled as error:
            raise HTTPException(STATUS_OF[ENDING], ENDING) from error
        except StarletteHTTPException:
            raise
        except Exception as error:
            logger.exception("generate() failed.")
            raise HTTPException(STATUS_OF[FAILED], FAILED) from error
        if isinstance(response, StreamingResponse):
            response.body_iterator = await begun(response.body_iterator, self.events_before_text + 1)
        return response

    def _validate_request(self, body: dict) -> None:
        super()._validate_request(body)
        for name, (kind, least, most) in NUMBERS.items():
            value = body.get(name)
            is_kind = isinstance(value, int | kind) and not isinstance(value, bool)
            if value is not None and not (is_kind and least <= value <= most):
                what = "an integer" if kind is int else "a number"
                limits = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
                raise HTTPException(400, f"{name}={value!r} is not {what} {limits}; correct it.")
        stop = body.get("stop")
        if stop is not None and not all(isinstance(text, str) and text for text in as_list(stop)):
            raise HTTPException(400, f"stop={stop!r} is neither a text nor a list of texts; correct it.")

    def _build_generation_config(
        self, body: dict, model_generation_config: GenerationConfig, use_cb: bool = False
    ) -> GenerationConfig:
        """The model's own settings, then those of the request, then its generation_config."""
        given = settings_of(body)
        max_tokens = body.get("max_completion_tokens")
        max_tokens = body.get("max_tokens") if max_tokens is None else max_tokens
        body = {**body, "max_tokens": max_tokens, "stop": body.get("stop") or None, "generation_config": None}
        seed = body.pop("seed", None)
        config = super()._build_generation_config(body, model_generation_config, use_cb=use_cb)
        if body.get("temperature") == 0:
            config.temperature = None  # 0 would be refused should generation_config ask for samples
        elif body.get("temperature") is not None or body.get("top_p") is not None:
            config.do_sample = True
        most = self.model_manager.model.config.max_position_embeddings
        if max_tokens is None:
            config.max_new_tokens = min(config.max_new_tokens, most)
        try:
            unknown = config.update(**given)
        except TypeError as error:
            raise ValueError(f"generation_config={given} has a value of the wrong kind ({error}).") from error
        if unknown:
            raise ValueError(f"generation_config has {', '.join(unknown)}, unknown to generate(); leave it out.")
        check_parameters(config)
        for number in (config.max_new_tokens, config.max_length):
            if number is not None and number > most:  # memory is taken for all of them
                raise ValueError(
                    f"{number} tokens are more than max_position_embeddings={most} of this model; ask for fewer."
                )
        config.return_dict_in_generate = False  # transformers' server takes tensors
        config.seed = seed
        return config


class Chat(Requests, ChatCompletionHandler):
    events_before_text = 1  # the role

    def _validate_request(self, body: dict) -> None:
        super()._validate_request(body)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
            raise HTTPException(
                400, f"messages={messages!r} is not a list of messages such as {{'role': 'user', 'content': 'Hello'}}."
            )


class Completions(Requests, CompletionHandler):
    pass


class NotServed:
    async def handle_request(self, *arguments):
        raise HTTPException(404, "This server answers /v1/chat/completions and /v1/completions.")


class OneAtATime(GenerationState):
    """All requests wait for the one thread that generates."""

    def __init__(self):
        super().__init__()
        self.generation = Generation()

    def get_manager(self, model_id: str, use_cb: bool = False) -> "Generation":
        return self.generation

    def shutdown(self) -> None:
        self.generation.stop()


class Generation(GenerateManager):
    def __init__(self):
        super().__init__()
        self.is_ending = False

    def stop(self) -> None:
        """Ends what is generated, with the next forward, and all that waits; returns when the thread is idle."""
        self.is_ending = True
        self.submit(int).result()

    def _generate(self, model: WeDLMForCausalLM, generation_config: GenerationConfig, **kwargs) -> torch.Tensor:
        # Seeded here and not where the request came in, when another one may have been drawing.
        seed = vars(generation_config).pop("seed")
        if seed is None:
            torch.seed()  # or it would go on from the seed of another client
        else:
            torch.manual_seed(seed)
        with model.register_forward_pre_hook(self._end_if_told):
            return model.generate(generation_config=generation_config, **kwargs)

    def _end_if_told(self, *_) -> None:
        if self.is_ending:
            raise _GenerationCancelled

    def generate_streaming(self, model, processor, inputs, gen_config, request_id, response_parser=None):
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        streamer = CommittedText(processor, loop, queue, response_parser, gen_config.stop_strings)

        def run() -> None:
            last = None
            try:
                self._generate(model, gen_config, **inputs, tokenizer=processor, streamer=streamer)
                streamer.flush()
            except _GenerationCancelled:
                last = stream_error(ENDING)  # unless it was the client who left, and nobody reads it
            except ValueError as error:
                last = stream_error(sentence_of(error))
            except Exception:
                logger.exception("generate() failed.")
                last = stream_error(FAILED)
            loop.call_soon_threadsafe(queue.put_nowait, last)

        self.submit(run)
        return queue, streamer

    async def generate_non_streaming(self, model, processor, inputs, gen_config, request_id):
        sequences = await self.async_submit(self._generate, model, gen_config, **inputs, tokenizer=processor)
        prompt_length = inputs["input_ids"].shape[-1]
        token_ids = sequences[0, prompt_length:]
        text = before_stop(processor.decode(token_ids, skip_special_tokens=True), gen_config.stop_strings)
        return text, prompt_length, token_ids


class CommittedText(DirectStreamer):
    """The text of all tokens that a forward committed as one event; a stop string and what follows it never appear."""

    def __init__(self, tokenizer, loop, queue, response_parser, stop_strings):
        super().__init__(tokenizer._tokenizer, loop, queue, response_parser=response_parser)
        self.tokenizer, self.stop_strings = tokenizer, stop_strings
        self.token_ids, self.text, self.num_sent = [], "", 0

    def put(self, value: torch.Tensor) -> None:
        if not self._first:
            self.token_ids += value.tolist()
        super().put(value)
        self._send(before_possible_stop(self.text, self.stop_strings))

    def _enqueue(self, item) -> None:
        if type(item) is str:
            self.text += item
        else:  # of a response_template: a tool call, a thought
            self._send(before_stop(self.text, self.stop_strings))
            super()._enqueue(item)

    def _send(self, text: str) -> None:
        if len(text) > self.num_sent:
            super()._enqueue(text[self.num_sent :])
            self.num_sent = len(text)

    def end(self) -> None:
        """Waits for `flush`: generate() calls this also when it fails, and the client would see a complete text."""

    def flush(self) -> None:
        whole = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        if self._parser is None and whole.startswith(self.text):
            self.text = whole  # bytes at the end that make no character are shown as everywhere else
        super().end()


def settings_of(body: dict) -> dict:
    """What extra_body={"generation_config": ...} asks for, an object or the JSON text of one."""
    given = body.get("generation_config")
    if isinstance(given, str):
        with suppress(json.JSONDecodeError):
            given = json.loads(given)
    if given is not None and not isinstance(given, dict):
        raise ValueError(f'generation_config={given!r} is not a JSON object such as {{"decoding": "autoregressive"}}.')
    return given or {}


def is_message(message: object) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and isinstance(part.get("text"), str) and "type" in part for part in content)
    return content is None or isinstance(content, str)


def before_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string."""
    for stop in as_list(stop_strings):
        text = text.partition(stop)[0]
    return text


def before_possible_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string, or up to what the next tokens may make one."""
    text = before_stop(text, stop_strings)
    beginnings = (stop[:length] for stop in as_list(stop_strings) for length in range(1, len(stop)))
    return text[: len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)]


def as_list(stop_strings: list[str] | str | None) -> list[str]:
    if stop_strings is None:
        return []
    return stop_strings if isinstance(stop_strings, list) else [stop_strings]


def sentence_of(error: Exception) -> str:
    return " ".join(str(error).split())


def stream_error(sentence: str) -> _StreamError:
    return _StreamError(json.dumps(sentence)[1:-1])  # transformers puts the quotes


async def begun(events: AsyncIterator[str], num_events: int) -> AsyncIterator[str]:
    """The events, after the first `num_events` have come: a request that is refused then gets a status of its own."""
    first = [await anext(events) for _ in range(num_events)]
    if first[-1].startswith('data: {"error"'):
        sentence = json.loads(first[-1].removeprefix("data: "))["error"]
        raise HTTPException(STATUS_OF.get(sentence, 400), sentence)

    async def all_events() -> AsyncIterator[str]:
        for event in first:
            yield event
        async for event in events:
            yield event
        yield DONE

    return all_events()


async def error_response(request: Request, error: StarletteHTTPException | RequestValidationError) -> JSONResponse:
    """In the form in which OpenAI's client finds the sentence."""
    if isinstance(error, RequestValidationError):
        status, sentence = 400, "The body of the request is not a JSON object; correct it."
    else:
        status, sentence = error.status_code, error.detail
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": sentence, "type": kind, "code": status}}, status)


def build_app(manager: OneModel, state: OneAtATime) -> FastAPI:
    handlers = {parameter: NotServed() for parameter in signature(build_server).parameters if "handler" in parameter}
    handlers |= {"chat_handler": Chat(manager, state), "completion_handler": Completions(manager, state)}
    app = build_server(model_manager=manager, generation_state=state, **handlers)
    app.add_exception_handler(StarletteHTTPException, error_response)
    app.add_exception_handler(RequestValidationError, error_response)
    return app


class Server(uvicorn.Server):
    """Ends the requests under way when it is told to end; uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, state: OneAtATime):
        super().__init__(config)
        self.state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The thread is waited for: a process that ends while torch computes aborts or hangs.
        await asyncio.to_thread(self.state.shutdown)
        await super().shutdown(sockets)


def take_port(host: str, port: int) -> socket.socket:
    """Clients that come before the server runs wait."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ValueError(
            f"--host {host!r} --port {port} cannot be listened on ({error.strerror}); choose another port, such as 0 "
            "for one that is free, or another address of this machine."
        ) from error


def serve(name: str, host: str, port: int, dtype: str, device: str | None, settings: dict) -> None:
    """Serves until it is interrupted; what is in the way raises a ValueError with the sentence to show."""
    check_parameters(GenerationConfig(**DEFAULTS | settings))
    listening = take_port(host, port)
    if host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Whoever reaches {host} may use the model: there is no key.", file=sys.stderr)
    model, tokenizer = load_checkpoint(name, dtype, device)
    model.generation_config.update(**settings)
    if Path(name).is_dir():
        name = Path(name).resolve().name
    host, port, *_ = listening.getsockname()
    address = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    state = OneAtATime()
    app = build_app(OneModel(name, model, tokenizer), state)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has ended
        print(f"{name} answers at {address}, one request at a time; others wait. Ctrl-C ends it.", flush=True)
        Server(uvicorn.Config(app, timeout_graceful_shutdown=GRACE_SECONDS), state).run(sockets=[listening])
