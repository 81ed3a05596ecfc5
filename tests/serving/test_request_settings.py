"""The settings that a request may bring, and those that are refused."""

import json

import pytest
from serving_client import (
    MESSAGES,
    POSITIONS,
    chat,
    generated,
    post,
)
from tiny_tokenizer import MASK

from wedlm.serving.one_model import OneModel
from wedlm.serving.routes import Chat
from wedlm.serving.worker import OneAtATime


def test_settings_of_a_request_reach_generate(checkpoint, client):
    texts = []
    for settings in (
        {},
        {"decoding": "autoregressive"},
        {"window_size": 3},
        {"entropy_threshold": None},
        {"distance_penalty": 3.0},
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


def test_a_text_is_no_longer_than_the_model_reads(checkpoint, monkeypatch):
    _, model, tokenizer = checkpoint
    chats = Chat(OneModel("tiny", model, tokenizer), OneAtATime())
    assert chats._build_generation_config({}, model.generation_config).max_new_tokens == 1024
    monkeypatch.setattr(model.config, "max_position_embeddings", 300)
    assert chats._build_generation_config({}, model.generation_config).max_new_tokens == 300


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"generation_config": {"window_size": 0}}, "window_size=0 is not a number of slots; set it to an integer of"),
        ({"generation_config": {"num_beams": 2}}, 'num_beams=2 is not offered by decoding="streaming"'),
        ({"generation_config": {"windw": 1}}, "generation_config has windw, unknown to generate(); leave it out."),
        ({"generation_config": "{"}, "generation_config='{' is not a JSON object such as"),
        ({"generation_config": [1]}, "generation_config=[1] is not a JSON object such as"),
        ({"generation_config": {"max_new_tokens": "x"}}, "has a value of the wrong kind"),
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
        ({"messages": []}, "messages=[] is not a list of messages"),
        ({"messages": [{"content": "the cat"}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": [3]}]}, "is not a list of messages"),
        ({"messages": [{"role": "user", "content": "<|mask|>"}]}, f"holds the MASK token, mask_token_id={MASK}"),
        ({"messages": [{"role": "user", "content": "the cat " * POSITIONS}]}, f"={POSITIONS}; shorten the prompt"),
        ({"unheard_of": 1}, "Unexpected fields in the request: {'unheard_of'}"),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(server, arguments, sentence, stream):
    status, answer = post(
        server, "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "stream": stream} | arguments
    )
    assert status == (422 if "unheard_of" in arguments else 400)
    assert sentence.replace('"', "'") in json.loads(answer)["error"]["message"].replace('"', "'")
