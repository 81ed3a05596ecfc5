"""The line of the log for each request, and what the metrics count of it."""

import logging

import pytest

from wedlm.batching.scheduler import BatchCounts
from wedlm.serving.metrics import Load, Metrics
from wedlm.serving.request_records import RequestRecord


def metrics():
    return Metrics(lambda: Load(BatchCounts(), 0, 0, 0, 0))


@pytest.mark.parametrize(
    "changes, outcome",
    [
        ({"status": 200}, "ok"),
        ({"status": 429}, "refused"),
        ({"status": 500}, "failed"),
        ({"status": None}, "failed"),
        ({"status": 200, "error": "The server is ending."}, "failed"),
        ({"status": None, "has_left": True}, "cancelled"),
        ({"status": 200, "has_left": True}, "cancelled"),
        ({"status": 200, "has_left": True, "is_whole": True}, "ok"),
    ],
)
def test_outcomes(changes, outcome, caplog):
    record, counted = RequestRecord("POST", "/v1/chat/completions"), metrics()
    for name, value in changes.items():
        setattr(record, name, value)
    with caplog.at_level(logging.INFO, "wedlm.requests"):
        record.close(counted)
    assert record.outcome == outcome
    line = f'wedlm_requests_total{{outcome="{outcome}",route="/v1/chat/completions"}} 1.0'
    assert line in counted.text().decode().splitlines()
    assert len(caplog.messages) == 1 and f" {outcome} " in caplog.messages[0]


def test_a_line_tells_the_tokens_and_the_first_of_them(caplog):
    record = RequestRecord("POST", "/v1/chat/completions", 200, prompt_tokens=12)
    record.note_tokens(0)
    assert record.first_token_seconds is None
    record.note_tokens(3)
    first = record.first_token_seconds
    record.note_tokens(4)
    assert record.first_token_seconds == first
    line = record.line(1.5)
    assert line.startswith("POST /v1/chat/completions 200 ok 1.500 s, first token after 0.0")
    assert line.endswith("12 prompt tokens, 7 new tokens")


def test_a_line_is_one_line():
    path = "/\n2026-01-01 POST /v1/chat/completions 200 \x1b[31m" + "x" * 1000
    line = RequestRecord("GET", path, 404).line(0)
    assert "\n" not in line and "\x1b" not in line and len(line) < 200


def test_questions_of_balancers_are_not_logged_while_all_is_well(caplog):
    with caplog.at_level(logging.INFO, "wedlm.requests"):
        RequestRecord("GET", "/health", 200).close(metrics())
        assert not caplog.messages
        RequestRecord("GET", "/health", 503).close(metrics())
        assert len(caplog.messages) == 1
