"""Errors over HTTP, in the form in which OpenAI's client finds them."""

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

RETRY_AFTER = {"Retry-After": "1"}  # seconds, for clients that find the queue full
SENTENCE_CHARACTERS = 1000  # of an error, which may quote the request
SERVER_FAILED, ENDING = "The server failed; its log says how.", "The server is ending."
DEAD = "The server can generate no more, and ends; its log says why."
FULL = "As many requests wait as may wait; send this one again later."
NO_JSON = "There was an error parsing the body"  # FastAPI's words for a body that json.loads cannot read
NO_ROUTE = "This server answers /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics."
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def sentence_of(error: Exception | str) -> str:
    sentence = " ".join(str(error).split())
    return sentence if len(sentence) <= SENTENCE_CHARACTERS else sentence[:SENTENCE_CHARACTERS] + " ..."


def timed_out(seconds: float) -> HTTPException:
    sentence = f"The request took longer than the {seconds:g} seconds of --request-timeout; ask for fewer tokens."
    return HTTPException(504, sentence, {"x-should-retry": "false"})  # OpenAI's clients would send it twice more


def unknown_model(name: str, served: str) -> HTTPException:
    error = HTTPException(404, f"The model {name} does not exist; this server has {served} only.")
    error.fields = {"param": "model", "code": "model_not_found"}  # as OpenAI's API says it
    return error


def error_json(error: StarletteHTTPException) -> dict:
    status = error.status_code
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    sentence = NO_ROUTE if error.detail in ("Not Found", "Method Not Allowed") else sentence_of(error.detail)
    return {"error": {"message": sentence, "type": kind, "code": status} | getattr(error, "fields", {})}


async def error_response(request: Request, error: StarletteHTTPException | RequestValidationError) -> JSONResponse:
    if isinstance(error, RequestValidationError) or error.detail == NO_JSON:
        error = HTTPException(400, "The body of the request is not a JSON object; correct it, or its Content-Type.")
    return JSONResponse(error_json(error), error.status_code, error.headers)
