"""Streams: an event for each commit, and no part of a character lost."""

from serving_client import chat, commits, generated, streamed
from tiny_tokenizer import MASK


def test_a_stream_has_an_event_for_each_commit(checkpoint, client):
    text = generated(checkpoint)[2]
    texts, reason, usage = streamed(chat(client, stream=True))
    assert texts == commits(checkpoint)
    assert len(texts) < 30 and "".join(texts) == text
    assert (reason, usage) == ("length", chat(client).usage)


def test_a_stream_loses_no_part_of_a_character(checkpoint, client):
    """Tokens are bytes, so a text may end within a character, which the stream holds back until the end."""
    settings = {"suppress_tokens": [MASK], "decoding": "autoregressive"}
    lengths = [n for n in range(1, 25) if generated(checkpoint, max_new_tokens=n, **settings)[2].endswith("\ufffd")]
    for max_tokens in lengths[:3]:
        body = {"max_tokens": max_tokens, "extra_body": {"generation_config": settings}}
        whole = chat(client, **body).choices[0].message.content
        assert whole.endswith("\ufffd") and "".join(streamed(chat(client, **body, stream=True))[0]) == whole
    assert lengths
