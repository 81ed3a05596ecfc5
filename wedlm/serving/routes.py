"""The routes of the server, and the responses of OpenAI's protocol, whole or in events."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Send
from transformers.cli.serving.utils import ToolCall

from wedlm.serving.detokenizer import Delta, Detokenizer
from wedlm.serving.engine import Engine, compiling, preparing, run_in
from wedlm.serving.http_errors import DEAD, error_json, error_response, sentence_of, unknown_model
from wedlm.serving.protocol import ChatRequest, CompletionRequest
from wedlm.serving.requests import PreparedRequest, ServedModel, prepare, read_request
from wedlm.serving.server_metrics import RequestRecord

DONE = "data: [DONE]\n\n"


def sse_event(content: dict) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def tool_call_json(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


class OpenAIResponse:
    """What the responses to chats and completions share; with `include_usage` each chunk has a `usage`."""

    prefix: str  # of the id
    whole_object: str
    chunk_object: str
    part_field: str  # of a choice in a chunk
    empty_part: dict | str

    def __init__(self, model: str, include_usage: bool = False):
        self.id = f"{self.prefix}{uuid4().hex}"
        self.frame = {"id": self.id, "created": int(time.time()), "model": model}
        if include_usage:
            self.frame["usage"] = None

    def whole(self, choices: list[dict], usage: dict) -> dict:
        return self.frame | {"object": self.whole_object, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict], **usage: dict) -> str:
        return sse_event(self.frame | {"object": self.chunk_object, "choices": choices, **usage})

    def chunk_choice(
        self, index: int, part: dict | str, logprobs: dict | None = None, finish_reason: str | None = None
    ) -> dict:
        return {"index": index, self.part_field: part, "logprobs": logprobs, "finish_reason": finish_reason}


class ChatResponse(OpenAIResponse):
    """The response of /v1/chat/completions."""

    prefix, whole_object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    part_field, empty_part = "delta", {}

    def choice(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict:
        """A whole text."""
        message = {"role": "assistant", "content": delta.content, "refusal": None}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            message["content"] = delta.content or None
            message["tool_calls"] = [tool_call_json(call) for call in delta.tool_calls]
        last = {"logprobs": self.logprobs(detokenizer, delta), "finish_reason": detokenizer.finish_reason}
        return {"index": index, "message": message, **last}

    def opening(self, index: int) -> dict | None:
        """The part before the first text."""
        return self.chunk_choice(index, {"role": "assistant", "content": "", "refusal": None})

    def part(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict | None:
        """A further part of a text; None if it is empty."""
        message, logprobs = {}, self.logprobs(detokenizer, delta)
        if delta.content or logprobs:
            message["content"] = delta.content
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            calls = enumerate(delta.tool_calls, detokenizer.num_tool_calls - len(delta.tool_calls))
            message["tool_calls"] = [{"index": number, **tool_call_json(call)} for number, call in calls]
        return self.chunk_choice(index, message, logprobs) if message else None

    @staticmethod
    def logprobs(detokenizer: Detokenizer, delta: Delta) -> dict | None:
        if detokenizer.logprobs is None:
            return None
        return {"content": detokenizer.logprobs.chat_form(delta.tokens), "refusal": None}


class CompletionResponse(OpenAIResponse):
    """The response of /v1/completions, whose choices are plain text."""

    prefix, whole_object, chunk_object = "cmpl-", "text_completion", "text_completion"
    part_field, empty_part = "text", ""

    def choice(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict:
        logprobs = self.logprobs(detokenizer, delta)
        return self.chunk_choice(index, delta.content, logprobs, detokenizer.finish_reason)

    def opening(self, index: int) -> dict | None:
        """Nothing: a text has no role."""

    def part(self, index: int, detokenizer: Detokenizer, delta: Delta) -> dict | None:
        if delta.content or (delta.tokens and detokenizer.logprobs):
            return self.chunk_choice(index, delta.content, self.logprobs(detokenizer, delta))

    @staticmethod
    def logprobs(detokenizer: Detokenizer, delta: Delta) -> dict | None:
        return None if detokenizer.logprobs is None else detokenizer.logprobs.completion_form(delta.tokens)


# --- The routes ---


def build_app(served: ServedModel, engine: Engine) -> FastAPI:
    app = FastAPI(title="wedlm serve", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(StarletteHTTPException, error_response)
    app.add_exception_handler(RequestValidationError, error_response)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: dict) -> Response:
        return await respond(served, engine, ChatRequest, body, request.scope["record"])

    @app.post("/v1/completions")
    async def completion(request: Request, body: dict) -> Response:
        return await respond(served, engine, CompletionRequest, body, request.scope["record"])

    @app.get("/v1/models")
    def models() -> dict:
        return {"object": "list", "data": [served.card]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict:
        if name == served.name:
            return served.card
        raise unknown_model(name, served.name)

    @app.get("/health")
    async def health() -> JSONResponse:  # A thread of its own would wait once more for the others' GIL.
        manager = engine.manager
        load = {"model": served.name, "running": len(manager.running), "waiting": len(manager.waiting)}
        if engine.fatal_error is not None:
            return JSONResponse({"status": "failed", "message": DEAD} | load, 503)
        return JSONResponse({"status": "ok"} | load)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(engine.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return app


async def respond(
    served: ServedModel,
    engine: Engine,
    kind: type[ChatRequest | CompletionRequest],
    body: dict,
    record: RequestRecord,
) -> Response:
    """Answers a request, or refuses it."""
    seconds = engine.request_timeout
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    response_type = ChatResponse if kind is ChatRequest else CompletionResponse
    try:
        async with asyncio.timeout_at(deadline):
            parsed = await run_in(preparing, read_request, served, kind, body)
            request = await run_in(compiling if parsed.needs_grammar else preparing, prepare, served, parsed)
            record.prompt_tokens = len(request.tokens)
            response = response_type(served.name, request.include_usage)
            if not request.stream:
                return await whole(engine, request, response, record)
            events = stream(engine, request, response, record, deadline)
            await anext(events)  # A request that fails before its first tokens gets a status of its own.
        return EventResponse(events, media_type="text/event-stream")
    except StarletteHTTPException:
        raise
    except Exception as error:
        raise engine.http_error(error) from error


async def whole(
    engine: Engine, request: PreparedRequest, response: OpenAIResponse, record: RequestRecord
) -> JSONResponse:
    choices = [None] * len(request.choices)
    async with engine.generate(request, response.id) as outputs:
        async for index, output in outputs:
            if output.error is not None:
                raise engine.failure(output.error)
            detokenizer = request.choices[index].detokenizer
            delta = await run_in(preparing, detokenizer.put, output)  # A whole text takes long to decode.
            choices[index] = response.choice(index, detokenizer, delta)
    record.completion_tokens = request.usage["completion_tokens"]
    return JSONResponse(response.whole(choices, request.usage))


async def stream(
    engine: Engine,
    request: PreparedRequest,
    response: OpenAIResponse,
    record: RequestRecord,
    deadline: float | None = None,
) -> AsyncIterator[str]:
    """The events of a response behind an empty one; a failure before that is raised, and a later one is an event."""
    has_begun = False
    try:
        async with engine.generate(request, response.id, deadline) as outputs:
            async for index, output in outputs:
                if output.error is not None:
                    raise engine.failure(output.error)
                detokenizer = request.choices[index].detokenizer
                delta = detokenizer.put(output)
                record.add_tokens(len(delta.tokens))
                if not has_begun:
                    yield ""
                choices = [] if has_begun else [response.opening(each) for each in range(len(request.choices))]
                has_begun = True
                choices.append(response.part(index, detokenizer, delta))
                if output.is_finished():
                    reason = detokenizer.finish_reason
                    choices.append(response.chunk_choice(index, response.empty_part, finish_reason=reason))
                if events := "".join(response.chunk([choice]) for choice in choices if choice is not None):
                    yield events
    except (HTTPException, TimeoutError) as error:
        if not has_begun:
            raise
        failure = engine.http_error(error) if isinstance(error, TimeoutError) else error
        record.error = sentence_of(failure.detail)
        yield sse_event(error_json(failure))
        return
    record.is_whole = True
    yield (response.chunk([], usage=request.usage) if request.include_usage else "") + DONE


class EventResponse(StreamingResponse):
    """A stream of events that have begun; its request ends with it, however it ends."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)
