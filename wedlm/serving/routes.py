"""The routes of the server: transformers' handlers with this model's settings, refusals and events."""

import json
from collections.abc import AsyncIterator
from inspect import signature

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from jinja2 import TemplateError
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers import GenerationConfig, logging
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import _GenerationCancelled

from wedlm.serving.errors import ENDING, FAILED, STATUS_OF, error_response, sentence_of
from wedlm.serving.one_model import OneModel
from wedlm.serving.request_settings import (
    body_for_transformers,
    check_fields,
    check_messages,
    complete,
    given_settings,
)
from wedlm.serving.worker import OneAtATime

logger = logging.get_logger(__name__)

DONE = "data: [DONE]\n\n"  # many clients wait for it


def build_app(manager: OneModel, state: OneAtATime) -> FastAPI:
    """Builds transformers' app with the two routes that are served here.

    Args:
        manager (`OneModel`): The model.
        state (`OneAtATime`): The line of requests before the worker.
    """
    handlers = {parameter: NotServed() for parameter in signature(build_server).parameters if "handler" in parameter}
    handlers |= {"chat_handler": Chat(manager, state), "completion_handler": Completions(manager, state)}
    app = build_server(model_manager=manager, generation_state=state, **handlers)
    app.add_exception_handler(StarletteHTTPException, error_response)
    app.add_exception_handler(RequestValidationError, error_response)
    return app


class Handler:
    """The part that both routes add to transformers' handlers."""

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
        check_fields(body)

    def _build_generation_config(
        self, body: dict, model_generation_config: GenerationConfig, use_cb: bool = False
    ) -> GenerationConfig:
        """The model's own settings, then those of the request, then those of its generation_config."""
        given = given_settings(body)
        config = super()._build_generation_config(body_for_transformers(body), model_generation_config, use_cb=use_cb)
        return complete(config, body, given, self.model_manager.model.config.max_position_embeddings)


class Chat(Handler, ChatCompletionHandler):
    events_before_text = 1  # the role

    def _validate_request(self, body: dict) -> None:
        super()._validate_request(body)
        check_messages(body)


class Completions(Handler, CompletionHandler):
    pass


class NotServed:
    """Stands for transformers' other routes."""

    async def handle_request(self, *arguments):
        raise HTTPException(404, "This server answers /v1/chat/completions and /v1/completions.")


async def begun(events: AsyncIterator[str], num_events: int) -> AsyncIterator[str]:
    """Waits for the first `num_events` of a stream, so that a request that is refused gets a status of its own."""
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
