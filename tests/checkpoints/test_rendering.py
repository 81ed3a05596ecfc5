"""Chat templates are rendered as transformers renders them, within limits of time and memory."""

import multiprocessing
import signal

import pytest
from tiny_tokenizer import QWEN3, make_tokenizer

from wedlm.checkpoints import rendering
from wedlm.checkpoints.limited_process import Refused
from wedlm.checkpoints.rendering import render, render_with_spans

CHAT = [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": "<think>\nb\n</think>\n\nc"}]
TOOLS = [{"name": "log"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_the_text_is_that_of_transformers():
    tokenizer = make_tokenizer(QWEN3 + "{{ eos_token }}{{ mood }}{{ messages[0].name is defined }}")
    for arguments in ({}, {"tools": TOOLS}, {"add_generation_prompt": True, "mood": "calm"}):
        expected = tokenizer.apply_chat_template(CHAT, tokenize=False, **arguments)
        assert render(tokenizer, CHAT, **arguments) == expected


def test_spans_are_those_of_the_marks():
    tokenizer = make_tokenizer(
        "{% for m in messages %}x{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    text, spans = render_with_spans(tokenizer, CHAT)
    assert [text[start:end] for start, end in spans] == [message["content"] for message in CHAT]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "TemplateError: Roles must alternate"),
        ("{% include 'other.jinja' %}", "TypeError: "),
        ("{% for m in messages %}{{ m.con", "TemplateSyntaxError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
        ("{{ 'a' * 10**10 }}", "it takes too much memory"),
        ("{{ 'a' * 10**8 }}", "its text has 100000000 characters"),
        (ENDLESS, "it takes longer than 0.2 seconds"),
        (None, "ValueError: "),
    ],
)
def test_a_template_that_fails_is_refused_and_the_next_one_is_rendered(monkeypatch, template, reason):
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.2 if template == ENDLESS else 30)
    with pytest.raises(Refused, match=f"^{reason}"):
        render(make_tokenizer(template), CHAT)
    assert render(make_tokenizer("b"), CHAT) == "b"


def test_messages_that_are_nested_too_deeply():
    content = "a"
    for _ in range(5000):
        content = [content]
    with pytest.raises(Refused, match="^RecursionError: "):
        render(make_tokenizer(QWEN3), [{"role": "user", "content": content}])


def test_after_ctrl_c_the_next_question_gets_its_own_answer():
    def interrupt(*_):
        raise KeyboardInterrupt

    render(make_tokenizer("a"), CHAT)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            render(make_tokenizer(ENDLESS), CHAT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert render(make_tokenizer("b"), CHAT) == "b"


def test_a_process_that_is_forked_renders_by_itself():
    """As the processes that tokenize training data do."""
    assert render(make_tokenizer("a"), CHAT) == "a"
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(render, (make_tokenizer("b"), CHAT)) == "b"
    assert render(make_tokenizer("c"), CHAT) == "c"
