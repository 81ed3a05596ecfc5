"""The routes of the server: transformers' handlers with this model's settings, refusals and events."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from inspect import signature

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers import GenerationConfig, PreTrainedTokenizerBase, logging
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import Modality, _GenerationCancelled

from wedlm.checkpoints.errors import one_line
from wedlm.generation.prompt import check_length
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.errors import ENDING, FAILED, STATUS_OF, error_response, sentence_of
from wedlm.serving.limits import PREPARED_AT_ONCE
from wedlm.serving.one_model import OneModel
from wedlm.serving.prepared_tokenizer import PreparedTokenizer
from wedlm.serving.request_settings import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    body_for_transformers,
    check_characters,
    check_fields,
    check_messages,
    complete,
    given_settings,
    shown,
    template_variables,
    tools_of,
)
from wedlm.serving.transport import Door
from wedlm.serving.worker import OneAtATime

logger = logging.get_logger(__name__)

DONE = "data: [DONE]\n\n"  # many clients wait for it

# Templates and tokenizers work here, because megabytes of text would stop the event loop for seconds.
preparing = ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare")


def build_app(manager: OneModel, state: OneAtATime, this_machine_only: bool) -> FastAPI:
    """Builds transformers' app with the routes that are served here.

    Args:
        manager (`OneModel`): The model.
        state (`OneAtATime`): The line of requests before the worker.
        this_machine_only (`bool`): Whether requests must come from this machine.
    """
    handlers = {parameter: NotServed() for parameter in signature(build_server).parameters if "handler" in parameter}
    handlers |= {"chat_handler": Chat(manager, state), "completion_handler": Completions(manager, state)}
    app = build_server(model_manager=manager, generation_state=state, **handlers)
    app.add_exception_handler(StarletteHTTPException, error_response)
    app.add_exception_handler(RequestValidationError, error_response)
    app.add_middleware(Door, this_machine_only=this_machine_only)

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict:
        for model in manager.get_gen_models():
            if model["id"] == name:
                return model
        raise HTTPException(404, f"This server has {manager.force_model} only, not {name}.")

    return app


class Handler:
    """The part that both routes add to transformers' handlers."""

    events_before_text = 0
    fields: Collection[str]
    adds_special_tokens: bool

    async def handle_request(self, body: dict, request_id: str):
        try:
            body = await asyncio.get_running_loop().run_in_executor(preparing, self.prepared, body)
            response = await super().handle_request(body, request_id)
        except ValueError as error:  # generate() refuses with a ValueError
            raise HTTPException(400, sentence_of(error)) from error
        except RecursionError as error:
            raise HTTPException(400, "The request is nested too deeply; flatten it.") from error
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

    def prepared(self, body: dict) -> dict:
        """Checks a request and reads its text; the result has a tokenizer that returns its tokens."""
        check_fields(body, self.fields)
        _, model, tokenizer = super()._resolve_model(body)
        body, text = self.text_of(body, tokenizer)
        check_characters(text)
        inputs = tokenizer(text, add_special_tokens=self.adds_special_tokens)
        if not inputs["input_ids"]:
            raise ValueError("The request holds an empty prompt; send at least one character.")
        check_length(len(inputs["input_ids"]), 0, model.config.max_position_embeddings)
        inputs.convert_to_tensors("pt", prepend_batch_axis=True)
        return body | {"tokenizer": PreparedTokenizer(tokenizer, inputs), "config": self.config_of(body)}

    def config_of(self, body: dict) -> GenerationConfig:
        """The model's own settings, then those of the request, then those of its generation_config."""
        model, given = self.model_manager.model, given_settings(body)
        config = super()._build_generation_config(body_for_transformers(body), model.generation_config)
        return complete(config, body, given, model.config)

    # transformers' handlers call these three; `prepared` has done their work.

    def _validate_request(self, body: dict) -> None:
        pass

    def _resolve_model(self, body: dict) -> tuple[str, WeDLMForCausalLM, PreparedTokenizer]:
        name, model, _ = super()._resolve_model(body)
        return name, model, body["tokenizer"]

    def _build_generation_config(self, body: dict, *_, **__) -> GenerationConfig:
        return body["config"]


class Chat(Handler, ChatCompletionHandler):
    events_before_text = 1  # the role
    fields = CHAT_FIELDS
    adds_special_tokens = False  # the template writes them

    def text_of(self, body: dict, tokenizer: PreTrainedTokenizerBase) -> tuple[dict, str]:
        check_messages(body.get("messages"))
        tools, variables = tools_of(body, tokenizer), template_variables(body, tokenizer)
        try:
            messages = self.get_processor_inputs_from_messages(body["messages"], Modality.LLM)
            text = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **variables
            )
        except RecursionError:
            raise
        except Exception as error:  # a template may fail in any way
            raise ValueError(
                f"The chat template cannot write these messages ({type(error).__name__}: {one_line(error)}); "
                "correct them."
            ) from error
        return body | {"messages": [], "tools": tools, "chat_template_kwargs": {}}, text


class Completions(Handler, CompletionHandler):
    fields = COMPLETION_FIELDS
    adds_special_tokens = True

    def text_of(self, body: dict, tokenizer: PreTrainedTokenizerBase) -> tuple[dict, str]:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise ValueError(f"prompt={shown(prompt)} is not a text; send one text.")
        return body, prompt


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
