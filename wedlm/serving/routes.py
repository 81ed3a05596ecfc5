"""The routes of the server: requests of OpenAI's protocol, answered whole or in events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Send
from transformers import logging

from wedlm.batching.free_memory import is_out_of_memory
from wedlm.serving.asked import Asked, ChatRoute, CompletionRoute, Served, asks_for_grammar, read_request
from wedlm.serving.engine import Engine, compiling, prepared, preparing
from wedlm.serving.errors import DEAD, FAILED, error_response, no_memory, sentence_of, told, too_late, unknown_model
from wedlm.serving.metrics import CONTENT_TYPE
from wedlm.serving.openai_form import DONE, Form, event, usage_of
from wedlm.serving.request_records import RequestRecord

logger = logging.get_logger(__name__)


def build_app(served: Served, engine: Engine) -> FastAPI:
    """Builds the app.

    Args:
        served (`Served`): The model.
        engine (`Engine`): The running batch that writes the answers.
    """
    app = FastAPI(title="wedlm serve", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(StarletteHTTPException, error_response)
    app.add_exception_handler(RequestValidationError, error_response)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: dict) -> Response:
        return await answer(served, engine, ChatRoute, body, request.scope["record"])

    @app.post("/v1/completions")
    async def completion(request: Request, body: dict) -> Response:
        return await answer(served, engine, CompletionRoute, body, request.scope["record"])

    @app.get("/v1/models")
    def models() -> dict:
        return {"object": "list", "data": [served.record]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict:
        if name == served.name:
            return served.record
        raise unknown_model(name, served.name)

    @app.get("/health")
    async def health() -> JSONResponse:  # A thread of its own would wait once more for the others' GIL.
        manager = engine.manager
        doing = {"model": served.name, "running": len(manager.running), "waiting": len(manager.waiting)}
        if engine.is_dead:
            return JSONResponse({"status": "failed", "message": DEAD} | doing, 503)
        return JSONResponse({"status": "ok"} | doing)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(engine.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return app


async def answer(
    served: Served,
    engine: Engine,
    route: type[ChatRoute] | type[CompletionRoute],
    body: dict,
    record: RequestRecord,
) -> Response:
    """Answers a request, or refuses it."""
    seconds = engine.request_timeout
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    try:
        async with asyncio.timeout_at(deadline):
            pool = compiling if asks_for_grammar(body) else preparing
            asked = await prepared(pool, read_request, served, route, body)
            record.prompt_tokens = len(asked.tokens)
            form = Form(route.form, served.name, asked.sends_usage)
            if not asked.streams:
                return await whole(engine, asked, form, record)
            events = stream(engine, asked, form, record, deadline)
            first = await anext(events)  # A request that fails before its first text gets a status of its own.
        return Events(first, events)
    except TimeoutError as error:
        raise too_late(seconds) from error
    except ValueError as error:
        raise HTTPException(400, sentence_of(error)) from error
    except StarletteHTTPException:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise no_memory() from error
        logger.exception("A request has failed.")
        raise HTTPException(500, FAILED) from error


async def whole(engine: Engine, asked: Asked, form: Form, record: RequestRecord) -> JSONResponse:
    choices = [None] * asked.number
    async with engine.texts(asked, form.name) as outputs:
        async for index, output in outputs:
            if output.error is not None:
                raise engine.failure(output.error)
            # A whole text takes long to read.
            choices[index] = await prepared(preparing, form.choice, index, asked.answers[index], output)
    usage = usage_of(len(asked.tokens), asked.answers)
    record.completion_tokens = usage["completion_tokens"]
    return JSONResponse(form.whole(choices, usage))


async def stream(
    engine: Engine, asked: Asked, form: Form, record: RequestRecord, deadline: float | None = None
) -> AsyncIterator[str]:
    """The events of an answer. A failure is raised before the first event, and told in an event later."""
    has_begun = False
    try:
        async with engine.texts(asked, form.name, deadline) as outputs:
            async for index, output in outputs:
                if output.error is not None:
                    raise engine.failure(output.error)
                answer = asked.answers[index]
                part = answer.put(output)
                record.note_tokens(len(part.tokens))
                events = [] if has_begun else [form.event(each) for each in form.openings(asked.number)]
                has_begun = True
                if (choice := form.kind.continued(index, answer, part)) is not None:
                    events.append(form.event([choice]))
                if output.is_finished():
                    events.append(form.event([form.kind.closing(index, answer)]))
                if events:
                    yield "".join(events)
    except (HTTPException, TimeoutError) as error:
        if not has_begun:
            raise
        failure = too_late(engine.request_timeout) if isinstance(error, TimeoutError) else error
        record.error = sentence_of(failure.detail)
        yield event(told(failure))
        return
    usage = form.event([], usage=usage_of(len(asked.tokens), asked.answers)) if asked.sends_usage else ""
    record.is_whole = True
    yield usage + DONE


class Events(StreamingResponse):
    """A stream of events, of which the first is there; its request ends with it, however it ends.

    Args:
        first (`str`): The first event.
        events (`AsyncIterator[str]`): The others.
    """

    def __init__(self, first: str, events: AsyncIterator[str]):
        self.events = events
        super().__init__(self.all_events(first), media_type="text/event-stream")

    async def all_events(self, first: str) -> AsyncIterator[str]:
        yield first
        async for each in self.events:
            yield each

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.events), aclosing(self.body_iterator):
            await super().stream_response(send)
