"""A request on its way into the batch: its settings reach generate(), and its prompt is the chat template's."""

import time

import pytest
import torch
from openai import BadRequestError
from serving_client import MESSAGES, chat, generated, prepared, served_model
from tiny_tokenizer import MASK
from transformers import StopStringCriteria

from wedlm.serving.protocol import ChatRequest
from wedlm.serving.requests import read_request


@pytest.fixture
def served(checkpoint):
    return served_model(checkpoint)


def test_settings_of_a_request_reach_generate(checkpoint, client):
    ids = generated(checkpoint)[1].tolist()
    texts = []
    for given, settings in (
        ({"decoding": "autoregressive"}, {}),
        ({"entropy_threshold": None}, {}),
        ({"decoding": "verified", "acceptance_ratio": 0.1}, {}),
        ({"decoding": "verified", "prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2}, {}),
        ({"repetition_penalty": 2}, {"repetition_penalty": 2.0}),  # JavaScript writes 2.0 so
        ({"suppress_tokens": ids[:3]}, {}),
        ({"bad_words_ids": [ids[:1], ids[3:5]]}, {}),
        ({"sequence_bias": [[ids[:1], -90]]}, {"sequence_bias": {(ids[0],): -90.0}}),
        ({"eos_token_id": [ids[7], 0]}, {}),
        ({"no_repeat_ngram_size": 2, "decoding": "verified"}, {}),
        ({"encoder_no_repeat_ngram_size": 1, "decoding": "verified"}, {}),
    ):
        texts.append(chat(client, extra_body={"generation_config": given}).choices[0].message.content)
        assert texts[-1] == generated(checkpoint, **given | settings)[2], given
    assert len(set(texts)) > 8


def test_logit_bias_moves_the_choice(checkpoint, client):
    ids = generated(checkpoint, decoding="streaming")[1].tolist()
    usual = max(set(ids), key=ids.count)
    only = client.completions.create(model="tiny", prompt="the cat", max_tokens=5, logit_bias={str(usual): 99.5})
    assert only.choices[0].text == checkpoint[2].decode([usual]) * 5


def test_a_least_length_beyond_the_limit_is_the_limit(checkpoint, served, recwarn):
    """transformers warns of it, with the numbers in the sentence, so that a client could fill the log."""
    config = prepared(served, max_tokens=5, generation_config={"min_new_tokens": 10**15, "min_length": 10**15}).config
    assert config.min_new_tokens == 5 and config.min_length < 100
    checkpoint[1].init_continuous_batching().add_request([4] * 10, generation_config=config)
    assert not recwarn.list
    only_length = {"max_new_tokens": None, "max_length": 50, "min_new_tokens": 3, "min_length": 3}
    assert prepared(served, generation_config=only_length).config.min_new_tokens == 3


def test_limits_are_those_of_requests_and_of_the_model(served, monkeypatch):
    monkeypatch.setattr(served.model.generation_config, "window_size", 500)  # by whoever runs the server
    assert prepared(served).config.window_size == 500
    assert prepared(served, generation_config={"window_size": 3}).config.max_new_tokens == 1024
    monkeypatch.setattr(served.model.config, "max_position_embeddings", 300)
    assert prepared(served).config.max_new_tokens == 300


def test_a_template_reads_all_of_a_message(checkpoint):
    served = served_model(
        checkpoint,
        chat_template="{% for m in messages %}{{ m.name }}|{{ m.reasoning_content }}|{{ m.content }}|"
        "{{ m.tool_calls[0].function.arguments.city }}|{% endfor %}",
    )
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    content = [{"type": "text", "text": "I look."}]
    message = {"role": "assistant", "content": content, "tool_calls": [call], "name": "a", "reasoning_content": "Hm."}
    assert served.tokenizer.decode(prepared(served, messages=[message]).tokens) == "a|Hm.|I look.|Bonn|"


def test_a_template_reads_its_own_variables_and_tools(checkpoint):
    template = "{{ 'a' if enable_thinking is true else 'b' }}{% for tool in tools or [] %}{{ tool.name }}{% endfor %}"
    served = served_model(checkpoint, chat_template=template)

    def text(**fields):
        return checkpoint[2].decode(prepared(served, **fields).tokens)

    assert text() == text(chat_template_kwargs={"enable_thinking": False}) == "b"
    assert text(chat_template_kwargs={"enable_thinking": True}) == "a"
    assert text(tools=[{"name": "x"}], tool_choice="none") == "b"
    assert text(tools=[{"name": "x"}], tool_choice="auto") == "bx"


@pytest.mark.parametrize(
    "template, name",
    [
        ("{% include 'other' %}", "TypeError: "),
        ("{{ messages[7].role }}", "UndefinedError: "),
        ("{{ 'a' * 10**10 }}", "it takes too much memory"),
        (None, "ValueError: "),
    ],
)
def test_a_template_that_fails_is_a_refusal(checkpoint, template, name):
    with pytest.raises(ValueError, match=f"The chat template cannot write these messages .{name}"):
        prepared(served_model(checkpoint, chat_template=template))


def test_half_a_character_in_the_arguments_of_a_call(checkpoint):
    served = served_model(checkpoint, chat_template="{{ messages[0].tool_calls[0].function.arguments.city }}")
    function = {"name": "weather", "arguments": '{"city": "\\ud800"}'}
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        prepared(served, messages=[{"role": "assistant", "tool_calls": [{"function": function}]}])


def test_only_requests_with_a_grammar_wait_for_other_grammars(served):
    for fields, expected in (
        ({"tool_choice": "auto", "response_format": {"type": "text"}}, False),
        ({"tool_choice": "required"}, True),
        ({"response_format": {"type": "json_object"}}, True),
    ):
        assert read_request(served, ChatRequest, {"messages": MESSAGES, **fields}).needs_grammar == expected
    assert served.grammars.process is None


@pytest.mark.parametrize("size", [1, 5_000, 10**12])
def test_no_size_of_ngrams_takes_long(served, size):
    """transformers makes a list of as many lists, and some of its versions copy all n-grams for each token."""
    settings = {"no_repeat_ngram_size": size, "encoder_no_repeat_ngram_size": size}
    begin = time.process_time()
    messages = [{"role": "user", "content": "the cat sat " * 4_000}]
    request = prepared(served, messages=messages, generation_config=settings)
    ids, scores = torch.tensor([request.tokens + [5] * 20]), torch.zeros(1, len(served.tokenizer))
    for end in range(len(request.tokens), ids.shape[1]):
        for processor in request.choices[0].logits_processor:
            processor(ids[:, :end], scores)
    assert len(request.tokens) > 8_000 and time.process_time() - begin < 2
    assert not request.config.no_repeat_ngram_size and not request.config.encoder_no_repeat_ngram_size


def test_long_stop_strings_are_prepared_at_once(served, monkeypatch):
    """transformers compares each character with each token of the vocabulary, in seconds for a large one."""
    monkeypatch.setattr(StopStringCriteria, "__init__", None)
    stop = ["".join(chr(97 + (i * k) % 26) for i in range(64)) for k in (1, 3, 5, 7)]
    begin = time.process_time()
    request = prepared(served, stop=stop)
    manager = served.model.init_continuous_batching()
    criteria = request.choices[0].stopping_criteria
    manager.add_request(request.tokens, generation_config=request.config, stopping_criteria=criteria)
    assert criteria[0].stop_strings == stop and time.process_time() - begin < 1


def test_a_prompt_cannot_be_empty(client):
    with pytest.raises(BadRequestError, match="empty prompt; send at least one character"):
        client.completions.create(model="tiny", prompt="")
    assert chat(client, extra_body={"generation_config": {"suppress_tokens": [MASK]}}, max_tokens=2).choices
