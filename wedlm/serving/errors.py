"""Refusals and failures of the server, as sentences in the form in which OpenAI's client finds them."""

import json

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers.cli.serving.utils import _StreamError

from wedlm.serving.limits import REQUESTS_IN_LINE, SENTENCE_CHARACTERS

FAILED, ENDING = "The server failed; its log says how.", "The server is ending."
FULL = f"The server has {REQUESTS_IN_LINE} requests in line, its limit; send this one again later."
NO_JSON = "There was an error parsing the body"  # FastAPI's words for a body that json.loads cannot read
STATUS_OF = {FAILED: 500, ENDING: 503, FULL: 503}  # any other refusal is the fault of the request: 400


def sentence_of(error: Exception | str) -> str:
    sentence = " ".join(str(error).split())
    return sentence if len(sentence) <= SENTENCE_CHARACTERS else sentence[:SENTENCE_CHARACTERS] + " ..."


def stream_error(sentence: str) -> _StreamError:
    """The last item of a stream that failed."""
    return _StreamError(json.dumps(sentence)[1:-1])  # transformers adds the quotes


async def error_response(request: Request, error: StarletteHTTPException | RequestValidationError) -> JSONResponse:
    """Answers a request that was refused."""
    if isinstance(error, RequestValidationError) or error.detail == NO_JSON:
        status, sentence = 400, "The body of the request is not a JSON object; correct it."
    else:
        status, sentence = error.status_code, sentence_of(error.detail)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": sentence, "type": kind, "code": status}}, status)
