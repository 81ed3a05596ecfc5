"""Refusals and failures in the form in which OpenAI's client finds them."""

import asyncio
import json

import pytest
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError

from wedlm.serving.errors import NO_JSON, error_response, sentence_of, stream_error


@pytest.mark.parametrize(
    "error, status, kind, message",
    [
        (HTTPException(400, "Correct it."), 400, "invalid_request_error", "Correct it."),
        (HTTPException(503, "The server is ending."), 503, "server_error", "The server is ending."),
        (RequestValidationError([]), 400, "invalid_request_error", "The body of the request is not a JSON object; "),
        (HTTPException(400, NO_JSON), 400, "invalid_request_error", "The body of the request is not a JSON object; "),
    ],
    ids=["refusal", "failure", "no object", "no JSON"],
)
def test_a_refusal_has_a_status_and_a_sentence(error, status, kind, message):
    answer = asyncio.run(error_response(None, error))
    told = json.loads(answer.body)["error"]
    assert answer.status_code == told["code"] == status
    assert told["type"] == kind and told["message"].startswith(message)


def test_a_sentence_survives_the_json_that_transformers_writes():
    sentence = sentence_of(ValueError('say "it"\n  again\\.'))
    assert sentence == 'say "it" again\\.'
    assert json.loads(f'{{"error": "{stream_error(sentence).msg}"}}')["error"] == sentence
