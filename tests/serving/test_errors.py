"""Refusals and failures in the form in which OpenAI's client finds them."""

import asyncio
import json

import pytest
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError

from wedlm.serving.errors import NO_JSON, NO_ROUTE, error_response, line_is_full, sentence_of

NO_OBJECT = "The body of the request is not a JSON object; correct it, or its Content-Type."


@pytest.mark.parametrize(
    "error, status, kind, message",
    [
        (HTTPException(400, "Correct it."), 400, "invalid_request_error", "Correct it."),
        (HTTPException(404, "Not Found"), 404, "invalid_request_error", NO_ROUTE),
        (HTTPException(401, "Send a key."), 401, "authentication_error", "Send a key."),
        (HTTPException(503, "The server is ending."), 503, "server_error", "The server is ending."),
        (RequestValidationError([]), 400, "invalid_request_error", NO_OBJECT),
        (HTTPException(400, NO_JSON), 400, "invalid_request_error", NO_OBJECT),
    ],
    ids=["refusal", "no route", "no key", "failure", "no object", "no JSON"],
)
def test_a_refusal_has_a_status_and_a_sentence(error, status, kind, message):
    answer = asyncio.run(error_response(None, error))
    told = json.loads(answer.body)["error"]
    assert answer.status_code == told["code"] == status
    assert told["type"] == kind and told["message"].startswith(message)


def test_a_full_line_says_when_to_come_again():
    answer = asyncio.run(error_response(None, line_is_full()))
    assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
    assert json.loads(answer.body)["error"]["type"] == "rate_limit_error"


def test_a_sentence_is_one_line():
    assert sentence_of(ValueError('say "it"\n  again.')) == 'say "it" again.'
    assert sentence_of("x" * 2000) == "x" * 1000 + " ..."
