"""Refusals and failures of the server, as sentences in the form in which OpenAI's client finds them."""

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from wedlm.batching.manager import NO_MEMORY
from wedlm.serving.limits import RETRY_AFTER, SENTENCE_CHARACTERS

FAILED, ENDING = "The server failed; its log says how.", "The server is ending."
DEAD = "The server can generate no more, and ends; its log says why."
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients would send a request of ten minutes twice more
FULL = "As many requests wait as may wait; send this one again later."
NO_JSON = "There was an error parsing the body"  # FastAPI's words for a body that json.loads cannot read
NO_ROUTE = "This server answers /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics."
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def sentence_of(error: Exception | str) -> str:
    sentence = " ".join(str(error).split())
    return sentence if len(sentence) <= SENTENCE_CHARACTERS else sentence[:SENTENCE_CHARACTERS] + " ..."


def line_is_full() -> HTTPException:
    return HTTPException(429, FULL, {"Retry-After": str(RETRY_AFTER)})


def too_many() -> HTTPException:
    return HTTPException(503, FULL, {"Retry-After": str(RETRY_AFTER), "Connection": "close"})


def no_memory() -> HTTPException:
    return HTTPException(503, NO_MEMORY, {"Retry-After": str(RETRY_AFTER)})


def too_late(seconds: float) -> HTTPException:
    sentence = f"The request took longer than the {seconds:g} seconds of --request-timeout; ask for fewer tokens."
    return HTTPException(504, sentence, NO_RETRY)


def unknown_model(name: str, served: str) -> HTTPException:
    error = HTTPException(404, f"The model {name} does not exist; this server has {served} only.")
    error.fields = {"param": "model", "code": "model_not_found"}  # as OpenAI's API says it
    return error


def told(error: StarletteHTTPException) -> dict:
    """An error as OpenAI's client reads it, in an answer of its own or in a stream."""
    status = error.status_code
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    sentence = NO_ROUTE if error.detail in ("Not Found", "Method Not Allowed") else sentence_of(error.detail)
    return {"error": {"message": sentence, "type": kind, "code": status} | getattr(error, "fields", {})}


async def error_response(request: Request, error: StarletteHTTPException | RequestValidationError) -> JSONResponse:
    """Answers a request that was refused."""
    if isinstance(error, RequestValidationError) or error.detail == NO_JSON:
        error = HTTPException(400, "The body of the request is not a JSON object; correct it, or its Content-Type.")
    return JSONResponse(told(error), error.status_code, error.headers)
