"""Which requests need a grammar, and who makes it."""

import copy

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


def test_a_template_reads_all_of_a_message(checkpoint):
    tokenizer = copy.copy(checkpoint[2])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.name }}|{{ m.reasoning_content }}|{{ m.content }}|"
        "{{ m.tool_calls[0].function.arguments.city }}|{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    content = [{"type": "text", "text": "I look."}]
    message = {"role": "assistant", "content": content, "tool_calls": [call], "name": "a", "reasoning_content": "Hm."}
    request = read_request(Served("tiny", checkpoint[1], tokenizer, 0), ChatRoute, {"messages": [message]})
    assert tokenizer.decode(request.tokens) == "a|Hm.|I look.|Bonn|"


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
