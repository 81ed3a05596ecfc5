"""The settings that a request may bring, and those that are refused."""

import json
import math

import openai
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from serving_client import (
    MESSAGES,
    POSITIONS,
    chat,
    generated,
    post,
)
from tiny_tokenizer import MASK
from transformers import GenerationConfig

from wedlm.serving.request_settings import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    IGNORED_FIELDS,
    NOT_OFFERED,
    NUMBER_SETTINGS,
    settings_of,
)


def test_settings_of_a_request_reach_generate(checkpoint, client):
    texts = []
    for settings in (
        {},
        {"decoding": "autoregressive"},
        {"window_size": 3},
        {"entropy_threshold": None},
        {"distance_penalty": 3.0},
        {"decoding": "verified", "acceptance_ratio": 0.1},
        {"repetition_penalty": 1.7},
    ):
        texts.append(generated(checkpoint, **settings)[2])
        for written in (settings, json.dumps(settings)):
            answer = chat(client, extra_body={"generation_config": written})
            assert answer.choices[0].message.content == texts[-1], settings
    assert len(set(texts)) == len(texts)
    # generation_config leaves the default limit as it is
    answer = chat(client, max_tokens=None, extra_body={"generation_config": {"window_size": 3}})
    assert answer.usage.completion_tokens == 1024


@pytest.mark.parametrize("number", [1e308, 1e-308, 10**300])
def test_no_number_makes_the_server_fail(server, number):
    for name, (kind, _, most) in NUMBER_SETTINGS.items():
        if most == math.inf:
            settings = {name: int(number) if kind is int else number}
            body = {"messages": MESSAGES, "max_tokens": 3, "generation_config": settings | {"do_sample": True}}
            assert post(server, "/v1/chat/completions", body)[0] in (200, 400), settings
    for name in ("entropy_threshold", "distance_penalty"):
        body = {"messages": MESSAGES, "max_tokens": 3, "generation_config": {name: number}}
        status, answer = post(server, "/v1/chat/completions", body)
        assert (status, "from 0 to 1e30" in answer) == ((200, False) if number < 1 else (400, True))


def test_a_least_length_beyond_the_limit_is_the_limit(checkpoint, recwarn):
    """transformers warns of it, with the numbers in the sentence, so that a client could fill the log."""
    model = checkpoint[1]
    given = {"min_new_tokens": 10**15, "min_length": 10**15}
    config = settings_of({"generation_config": given, "max_tokens": 5}, model, 10)
    assert (config.min_new_tokens, config.min_length) == (5, 15)
    model.init_continuous_batching().add_request([4] * 10, generation_config=config)
    assert not recwarn.list


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decoding", ["verified", "autoregressive"])
def test_a_look_up_changes_no_answer(checkpoint, client, decoding, stream):
    text = generated(checkpoint, decoding="autoregressive")[2]
    settings = {"decoding": decoding, "prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2}
    answer = chat(client, stream=stream, extra_body={"generation_config": settings})
    if stream:
        assert "".join(event.choices[0].delta.content or "" for event in answer if event.choices) == text
    else:
        assert answer.choices[0].message.content == text


def test_the_limit_of_the_window_is_for_requests(checkpoint, monkeypatch):
    """Whoever runs the server may have set more."""
    model = checkpoint[1]
    monkeypatch.setattr(model.generation_config, "window_size", 500)
    assert settings_of({}, model, 10).window_size == 500


def test_a_text_is_no_longer_than_the_model_reads(checkpoint, monkeypatch):
    model = checkpoint[1]
    assert settings_of({}, model, 10).max_new_tokens == 1024
    monkeypatch.setattr(model.config, "max_position_embeddings", 300)
    assert settings_of({}, model, 10).max_new_tokens == 300


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"generation_config": {"window_size": 0}}, "window_size=0 is not a number of slots; set it to an integer of"),
        (
            {"temperature": 1, "generation_config": {"decoding": "verified", "acceptance_ratio": 0.5}},
            "acceptance_ratio=0.5 accepts drafts without drawing, and do_sample=True asks for draws; ",
        ),
        ({"n": 17}, "n=17 is not an integer from 1 to 16"),
        ({"presence_penalty": 3}, "presence_penalty=3 is not a number from -2 to 2"),
        ({"logprobs": 3}, "logprobs=3 is neither true nor false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21 is not an integer from 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs=2 needs logprobs=true; set it."),
        ({"generation_config": {"windw": 1}}, "generation_config has 'windw', unknown to generate(); leave it out."),
        ({"generation_config": "{"}, "generation_config='{' is not a JSON object such as"),
        ({"generation_config": [1]}, "generation_config=[1] is not a JSON object such as"),
        ({"generation_config": {"max_new_tokens": "x"}}, "max_new_tokens='x' is not an integer of 1 or more"),
        (
            {"generation_config": {"max_new_tokens": None, "max_length": 10**13}},
            f"{10**13} tokens are more than max_position_embeddings={POSITIONS}",
        ),
        ({"max_tokens": POSITIONS + 1}, f"{POSITIONS + 1} tokens are more than max_position_embeddings={POSITIONS}"),
        ({"temperature": -1}, "temperature=-1 is not a number of 0 or more"),
        ({"temperature": "hot"}, "temperature='hot' is not a number of 0 or more"),
        ({"top_p": 1.5}, "top_p=1.5 is not a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens=0 is not an integer of 1 or more"),
        ({"max_tokens": 2.5}, "max_tokens=2.5 is not an integer of 1 or more"),
        ({"seed": True}, "seed=True is not an integer from -9223372036854775808 to"),
        ({"stop": [3]}, "stop=[3] is neither a text nor a list of texts"),
        ({"stop": ""}, "stop='' is neither a text nor a list of texts"),
        ({"logit_bias": {"9" * 5000: 1}}, "is not an object of up to 300 tokens from 0 to"),
        ({"tools": 0}, "tools=0 is not a list of objects"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "the cat"}]}]},
            "is not a list of messages",
        ),
        ({"messages": []}, "messages=[] is not a list of messages"),
        ({"messages": [{"content": "the cat"}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": [3]}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": "<|mask|>"}]}, f"holds the MASK token, mask_token_id={MASK}"),
        ({"messages": [{"role": "user", "content": "the cat " * POSITIONS}]}, f"={POSITIONS}; shorten the prompt"),
        ({"temperature": float("nan")}, "temperature=nan is not a number of 0 or more"),
        ({"temperature": 10**400}, "is not a number of 0 or more"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "is more than 4 texts of 64 characters; shorten it."),
        ({"stop": "a" * 65}, "is more than 4 texts of 64 characters; shorten it."),
        ({"stream": "yes"}, "stream='yes' is neither true nor false"),
        ({"logit_bias": {"50": "much"}}, "is not an object of up to 300 tokens from 0 to 320 with biases from -100"),
        ({"logit_bias": {"340": 1}}, "logit_bias={'340': 1} is not an object of up to 300 tokens from 0 to 320"),
        ({"logit_bias": {"-1": 1}}, "logit_bias={'-1': 1} is not an object"),
        ({"logit_bias": [50]}, "logit_bias=[50] is not an object"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, "is not an object of up to 300 tokens"),
        ({"tools": [{"type": "function"}]}, "tools are not read by the chat template of this model"),
        ({"tools": "all"}, "tools='all' is not a list of objects"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "'\\ud800' in the request is half of a surrogate pair",
        ),
        ({"stop": "a\udfff"}, "is half of a surrogate pair and no character"),
        ({"\ud800": 1}, "is half of a surrogate pair and no character"),
        ({"generation_config": '{"stop_strings": "\\ud800"}'}, "is half of a surrogate pair and no character"),
        ({"messages": [{"role": "user", "tool_calls": [3]}]}, "cannot write these messages (AttributeError: "),
        ({"messages": [{"role": "user", "tool_calls": [{"arguments": "{"}]}]}, "(JSONDecodeError: "),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs=3 is not a JSON object"),
        *(
            ({"chat_template_kwargs": {name: None}}, f"chat_template_kwargs sets {name}, and a request may set only")
            for name in (
                "chat_template",
                "padding",
                "max_length",
                "messages",
                "tools",
                "add_generation_prompt",
                "tokenize",
                "conversation",
                "conversations",
                "self",
                "truncation",
                "tokenizer_kwargs",
                "eos_token",
            )
        ),
        *(
            ({"generation_config": {name: value}}, f"generation_config.{name}={shown} is not offered by this server")
            for name, value, shown in (
                ("max_cache_len", 10**9, "1000000000"),
                ("num_return_sequences", 10_000, "10000"),
                ("num_beams", 2, "2"),
                ("early_stopping", True, "True"),
                ("prefill_chunk_size", 8, "8"),
                ("cache_implementation", "static", "'static'"),
                ("compile_config", {}, "{}"),
                ("use_cache", False, "False"),
                ("output_scores", True, "True"),
                ("watermarking_config", {"context_width": 10**9}, "{'context_width': 1000000000}"),
                ("low_memory", True, "True"),
                ("exponential_decay_length_penalty", [9, 1.5], "[9, 1.5]"),  # overflows in a long text
                ("token_healing", True, "True"),
            )
        ),
        *(
            ({"generation_config": {name: 1}}, f"generation_config has '{name}', unknown to generate(); leave it out.")
            for name in (
                "validate",
                "update",
                "to_dict",
                "_from_model_config",
                "_commit_hash",
                "__class__",
                "__dict__",
            )
        ),
        ({"generation_config": {"repetition_penalty": 0}}, "repetition_penalty=0.0 is not above 0; raise it."),
        ({"generation_config": {"window_size": 129}}, "window_size=129 is more than 128 slots; make it smaller"),
        (
            {"generation_config": {"prompt_lookup_num_tokens": 128}},
            "prompt_lookup_num_tokens=128 is not an integer from 0 to 127",
        ),
        (
            {"generation_config": {"prompt_lookup_num_tokens": 3, "decoding": "streaming"}},
            "prompt_lookup_num_tokens=3 is not offered by decoding='streaming', whose drafts nothing verifies",
        ),
        (
            {"generation_config": {"max_matching_ngram_size": 17}},
            "max_matching_ngram_size=17 is not an integer from 1 to 16",
        ),
        ({"generation_config": {"stop_strings": ["ab"] * 3000}}, "is more than 4 texts of 64 characters"),
        ({"generation_config": {"top_k": "x"}}, "top_k='x' is not an integer of 0 or more"),
        ({"generation_config": {"do_sample": "x"}}, "do_sample='x' is neither true nor false"),
        ({"generation_config": {"eos_token_id": 10**30}}, "is not a list of tokens from 0 to 320"),
        ({"generation_config": {"eos_token_id": []}}, "eos_token_id=[] is not a list of tokens from 0 to 320"),
        ({"generation_config": {"pad_token_id": [3]}}, "pad_token_id=[3] is not a token from 0 to 320"),
        ({"generation_config": {"suppress_tokens": [340]}}, "suppress_tokens=[340] is not a list of tokens from 0"),
        ({"generation_config": {"bad_words_ids": [[5]] * 301}}, "is not a list of 1 to 300 tokens, with tokens from"),
        ({"generation_config": {"bad_words_ids": [5]}}, "bad_words_ids=[5] is not a list of 1 to 300"),
        ({"generation_config": {"sequence_bias": [[5, 6, 7]]}}, "sequence_bias=[[5, 6, 7]] is not a list of 1 to 300"),
        ({"generation_config": {"sequence_bias": {"5": 1}}}, "sequence_bias={'5': 1} is not a list of 1 to 300"),
        ({"unheard_of": 1}, "The request has a field 'unheard_of', which this server does not know; leave it out."),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(server, arguments, sentence, stream):
    status, answer = post(
        server, "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "stream": stream} | arguments
    )
    assert status == 400
    assert sentence.replace('"', "'") in json.loads(answer)["error"]["message"].replace('"', "'")


def test_a_sentence_stays_short(server):
    status, answer = post(server, "/v1/chat/completions", {"messages": "x" * 1_000_000})
    assert status == 400 and len(answer) < 300 and "is not a list of messages" in answer
    status, answer = post(server, "/v1/chat/completions", {"messages": MESSAGES, "model": "x" * 1_000_000})
    assert status == 404 and len(answer) < 1200 and "this server has tiny only" in answer


ASKED = {  # fields of OpenAI's protocol that would change the answer, for which there is no code here
    "chat": {
        "audio": {"voice": "alloy", "format": "wav"},
        "function_call": "auto",
        "functions": [{"name": "x"}],
        "modalities": ["text", "audio"],
        "reasoning_effort": "high",
        "verbosity": "low",
        "web_search_options": {},
    },
    "completion": {"best_of": 2, "echo": True, "suffix": "the end"},
}
NOTHING = {  # values that ask for nothing, and fields that change nothing
    "chat": {
        "logprobs": False,
        "metadata": {"a": "b"},
        "modalities": ["text"],
        "n": 1,
        "presence_penalty": 0,
        "response_format": {"type": "text"},
        "store": True,
        "stream_options": None,
        "tool_choice": "none",
        "tools": [],
        "user": "me",
    },
    "completion": {"best_of": 1, "echo": False, "n": 1, "presence_penalty": 0.0, "suffix": "", "user": "me"},
}


def create(client, kind, **fields):
    if kind == "chat":
        return client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, **fields)
    return client.completions.create(model="tiny", prompt="the cat", max_tokens=3, **fields)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_fields_without_effect_are_refused_by_name(client, kind):
    for name, value in ASKED[kind].items():
        with pytest.raises(openai.BadRequestError, match=f"{name}=.* is not offered by this server; leave it out"):
            create(client, kind, extra_body={name: value})  # older clients do not know all of them
    assert create(client, kind, **NOTHING[kind]).choices
    assert create(client, kind, extra_body=dict.fromkeys(NOT_OFFERED)).choices  # null


def test_every_field_of_openai_is_decided():
    for params, fields in ((ChatParams, CHAT_FIELDS), (CompletionParams, COMPLETION_FIELDS)):
        sent = params.__required_keys__ | params.__optional_keys__
        assert sent <= fields | IGNORED_FIELDS | NOT_OFFERED.keys()
        assert not fields & (IGNORED_FIELDS | NOT_OFFERED.keys()) and not IGNORED_FIELDS & NOT_OFFERED.keys()


@pytest.mark.parametrize("decoding", ["streaming", "autoregressive"])
def test_logit_bias_moves_the_choice(checkpoint, client, decoding):
    """OpenAI's form: tokens as keys, in JSON texts, with integers or other numbers."""
    extra_body = {"generation_config": {"decoding": decoding}}
    ids = generated(checkpoint, decoding=decoding)[1].tolist()
    usual = max(set(ids), key=ids.count)
    letter = checkpoint[2].decode([usual])
    plain = chat(client, extra_body=extra_body).choices[0].message.content
    for key in (usual, str(usual)):
        banned = chat(client, logit_bias={key: -100}, extra_body=extra_body).choices[0].message.content
        expected = generated(checkpoint, decoding=decoding, sequence_bias={(usual,): -100.0})
        assert banned == expected[2] != plain and usual not in expected[1]
    only = chat(client, logit_bias={str(usual): 100}, extra_body=extra_body).choices[0].message.content
    assert only == letter * 40
    answer = client.completions.create(
        model="tiny", prompt="the cat", max_tokens=5, logit_bias={str(usual): 99.5}, extra_body=extra_body
    )
    assert answer.choices[0].text == letter * 5


def test_settings_of_every_kind_reach_generate(checkpoint, client):
    ids = generated(checkpoint)[1].tolist()
    for given, settings in (
        ({"suppress_tokens": ids[:3]}, None),
        ({"bad_words_ids": [ids[:1], ids[3:5]]}, None),
        ({"sequence_bias": [[ids[:1], -90]]}, {"sequence_bias": {(ids[0],): -90.0}}),
        ({"eos_token_id": [ids[7], 0]}, None),
        ({"min_new_tokens": 5, "use_cache": True, "num_return_sequences": 1, "num_beams": 1}, None),
        ({"top_k": 5, "max_cache_len": None, "do_sample": False}, {}),
        ({"repetition_penalty": 2}, {"repetition_penalty": 2.0}),  # JavaScript writes 2.0 so
    ):
        answer = chat(client, extra_body={"generation_config": given})
        assert answer.choices[0].message.content == generated(checkpoint, **given | (settings or {}))[2], given
    written = GenerationConfig(min_new_tokens=3, repetition_penalty=1.7).to_json_string()
    answer = chat(client, extra_body={"generation_config": written})
    assert answer.choices[0].message.content == generated(checkpoint, repetition_penalty=1.7, min_new_tokens=3)[2]
