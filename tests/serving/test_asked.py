"""Which requests need a grammar, and who makes it."""

import pytest
from serving_client import MESSAGES

from wedlm.serving.asked import ChatRoute, Served, asks_for_grammar, read_request


def test_a_server_has_one_compiler_of_grammars_from_its_start(checkpoint):
    """Two threads that made it at their first requests would start two processes."""
    served = Served("tiny", checkpoint[1], checkpoint[2], 0)
    grammars = vars(served)["grammars"]
    read_request(served, ChatRoute, {"messages": MESSAGES})
    assert served.grammars is grammars
    assert grammars.process is None and "info" not in vars(grammars)  # nobody has asked for a grammar


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, False),
        ({"tool_choice": "auto", "response_format": {"type": "text"}}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function"}}, True),
        ({"response_format": {"type": "json_object"}}, True),
    ],
)
def test_only_requests_with_a_grammar_wait_for_other_grammars(fields, expected):
    assert asks_for_grammar(fields) == expected
