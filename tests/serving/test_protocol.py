"""Requests as pydantic models: what is refused, in which sentence, and what has no effect."""

import json

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from serving_client import MESSAGES, POSITIONS, post, prepared, served_model
from tiny_tokenizer import MASK
from transformers import GenerationConfig

from wedlm.serving.protocol import ChatRequest, CompletionRequest, GenerationSettings, validated

TEXT_PART = {"type": "image_url", "text": "the cat"}
REFUSED = [  # fields of a chat, and words of the sentence
    ({"n": 17}, "n=17 is refused (Input should be less than or equal to 16); correct it."),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21 is refused"),
    ({"top_logprobs": 2}, "top_logprobs=2 needs logprobs=true; set it."),
    ({"presence_penalty": 3}, "presence_penalty=3 is refused"),
    ({"temperature": -1}, "temperature=-1 is refused"),
    ({"stop": ""}, "stop.0='' is refused"),
    ({"temperature": float("nan")}, "temperature=nan is refused"),
    ({"temperature": 10**400}, "is refused"),
    ({"top_p": 1.5}, "top_p=1.5 is refused"),
    ({"max_tokens": POSITIONS + 1}, f"{POSITIONS + 1} tokens are more than max_position_embeddings={POSITIONS}"),
    ({"seed": True}, "seed=True is refused"),
    ({"stop": [3]}, "stop.0=3 is refused"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "should have at most 4 items"),
    ({"stop": "a" * 65}, "should have at most 64 characters"),
    ({"stop": "a\udfff"}, "is half of a surrogate pair and no character; take it out."),
    ({"\ud800": 1}, "is half of a surrogate pair"),
    ({"stream_options": {"include_usage": True}}, "stream_options is only for stream=true; leave it out."),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation=True is not offered"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"340": 1}}, "the tokens of this model are 0 to 320"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1=-1 is refused"),
    ({"logit_bias": {str(token): 1 for token in range(301)}}, "at most 300 items"),
    ({"tools": [{"type": "function"}]}, "tools are not read by the chat template of this model; leave them out."),
    ({"messages": [{"content": "the cat"}]}, "messages.0.role is missing; add it."),
    ({"messages": [{"role": "user", "content": [TEXT_PART]}]}, "messages.0.content.0.type='image_url' is refused"),
    ({"messages": [{"role": "user", "content": "the cat " * POSITIONS}]}, f"={POSITIONS}; shorten the prompt"),
    ({"messages": [{"role": "user", "tool_calls": [3]}]}, "cannot write these messages (AttributeError: "),
    ({"chat_template_kwargs": {"padding": "max_length"}}, "chat_template_kwargs sets padding, and a request may set"),
    ({"chat_template_kwargs": {"chat_template": "x", "eos_token": "y"}}, "sets chat_template, eos_token, and"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "schema={} is not offered by this server"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "schema is missing; add it."),
    ({"unheard_of": 1}, "unheard_of=1 is not offered by this server; leave it out."),
    ({"audio": {"voice": "alloy"}}, "audio={'voice': 'alloy'} is not offered by this server; leave it out."),
    ({"generation_config": "{"}, "generation_config='{' is refused (EOF while parsing"),
    ({"generation_config": '{"stop_strings": "\\ud800"}'}, "generation_config="),
]
REFUSED_SETTINGS = [  # settings in generation_config, and words of the sentence
    ({"window_size": 129}, "window_size=129 is refused (Input should be less than or equal to 128); correct it."),
    ({"decoding": "fast"}, "decoding='fast' is unknown"),
    ({"entropy_threshold": 1e31}, "entropy_threshold=1e+31 is not an entropy"),
    ({"decoding": "verified", "acceptance_ratio": 0.5, "do_sample": True}, "acceptance_ratio=0.5 accepts drafts"),
    ({"windw": 1}, "generation_config.windw=1 is not offered by this server; leave it out."),
    ({"num_return_sequences": 10_000}, "num_return_sequences=10000 is not offered"),
    ({"max_new_tokens": None, "max_length": 10**13}, f"{10**13} tokens are more than max_position_embeddings="),
    ({"prompt_lookup_num_tokens": 128}, "prompt_lookup_num_tokens=128 is refused"),
    ({"max_matching_ngram_size": 17}, "max_matching_ngram_size=17 is refused"),
    ({"eos_token_id": []}, "eos_token_id=[] is refused"),
    ({"stop_strings": ["ab"] * 3000}, "stop_strings="),
    ({"suppress_tokens": [340]}, "suppress_tokens.0=340 is refused (the tokens of this model are 0 to 320)"),
    ({"bad_words_ids": [[5]] * 301}, "at most 300 items"),
]
REFUSED += [({"generation_config": settings}, words) for settings, words in REFUSED_SETTINGS]


def test_bad_requests_are_refused_in_a_sentence(checkpoint):
    for fields, words in REFUSED:
        with pytest.raises(ValueError) as error:
            prepared(served_model(checkpoint), **fields)
        sentence = str(error.value)
        assert words in sentence and sentence.endswith(".") and "\n" not in sentence, sentence


def refusal(server, body):
    status, answer = post(server, "/v1/chat/completions", body)
    return status, json.loads(answer)["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_status_400_and_a_short_sentence(server, stream):
    body = {"messages": MESSAGES, "stream": stream, "temperature": "x" * 500_000, "y" * 400_000: 1}
    status, error = refusal(server, body)
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith("temperature='xxx") and len(error["message"]) < 200
    mask = {"messages": [{"role": "user", "content": "<|mask|>"}], "stream": stream}  # generate() refuses it
    status, error = refusal(server, mask)
    assert status == 400 and f"holds the MASK token, mask_token_id={MASK}" in error["message"]


def test_every_field_of_openai_is_decided():
    for params, request in ((ChatParams, ChatRequest), (CompletionParams, CompletionRequest)):
        sent = params.__required_keys__ | params.__optional_keys__
        fields = request.model_fields.keys()
        assert sent <= fields | request.ignored | request.no_effect.keys()
        assert not fields & (request.ignored | request.no_effect.keys())


def test_fields_that_hold_nothing_have_no_effect(checkpoint):
    served, settings = served_model(checkpoint), GenerationSettings.no_effect.items()
    plain = prepared(served)
    not_offered = {name: value for name, value in settings if name not in GenerationSettings.model_fields}
    for fields in (
        dict.fromkeys(ChatRequest.model_fields.keys() - {"messages"}),
        ChatRequest.no_effect | {"metadata": {"a": "b"}, "store": True, "user": "me"},
        dict.fromkeys(ChatRequest.no_effect),
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "stop": [], "logit_bias": {}},
        {"generation_config": not_offered | {"transformers_version": "5"}},
        {"messages": [MESSAGES[0] | {"tool_calls": None, "refusal": None, "audio": None}]},
        {"messages": [MESSAGES[0] | {"tool_calls": []}]},
    ):
        request = prepared(served, **fields)
        assert request.tokens == plain.tokens and request.config.to_dict() == plain.config.to_dict()


def test_null_unsets_a_setting():
    given = {"entropy_threshold": None, "max_new_tokens": None, "max_cache_len": None}
    settings = validated(GenerationSettings, given, vocab_size=99).model_dump(exclude_unset=True)
    assert settings == {"entropy_threshold": None, "max_new_tokens": None}


def test_generation_config_may_be_the_json_of_transformers():
    text = GenerationConfig(min_new_tokens=3, repetition_penalty=2).to_json_string()
    request = validated(CompletionRequest, {"prompt": "a", "generation_config": text}, vocab_size=99)
    settings = request.generation_config.model_dump(exclude_unset=True)
    assert settings == {"min_new_tokens": 3, "repetition_penalty": 2.0}


@pytest.mark.parametrize("number", [1e308, 1e-308, 10**300])
def test_no_number_makes_the_server_fail(server, number):
    is_number = {"exclusiveMinimum", "minimum"}.intersection
    for name, schema in GenerationSettings.model_json_schema()["properties"].items():
        kinds = [kind for kind in schema.get("anyOf", [schema]) if is_number(kind) and "maximum" not in kind]
        if kinds or name in ("entropy_threshold", "distance_penalty"):
            settings = {name: number, "do_sample": True}
            body = {"messages": MESSAGES, "max_tokens": 2, "generation_config": settings}
            assert post(server, "/v1/chat/completions", body)[0] in (200, 400), settings


def test_bodies_that_are_no_json_object(server):
    for body in (b"{", b"[]", b"\xff", b'{"a": ' + b"[" * 100_000):
        status, error = refusal(server, body)
        assert status == 400 and "is not a JSON object" in error["message"]
    body = {"messages": [MESSAGES[0] | {"name": json.loads("[" * 900 + "]" * 900)}]}
    assert post(server, "/v1/chat/completions", body)[0] in (200, 400)
