"""A tiny checkpoint and one server for all tests of serving."""

import logging
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from serving_client import (
    DEFAULTS,
    MESSAGES,
    POSITIONS,
    autoregressive,
    client_of,
    post,
    served_model,
    started_server,
)
from tiny_tokenizer import END, MASK, make_tokenizer

from wedlm import WeDLMConfig, WeDLMForCausalLM

TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for message in messages %}{{ message.content }}{% endfor %}{# <tool_call></tool_call> #}"""


@pytest.fixture(autouse=True)
def same_logging():
    """A server that a test runs in this process silences loggers for the whole process."""
    loggers = [logging.getLogger(name) for name in ("transformers.generation", "wedlm.generation.call")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A random model that writes letters, with an entropy at which a forward fills some slots and not all."""
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = WeDLMConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=POSITIONS,
        initializer_range=0.4,
        pad_token_id=END,
        eos_token_id=END,
        mask_token_id=MASK,
    )
    model = WeDLMForCausalLM(config).eval()
    letters = re.compile(r"[ -~]+")
    pieces = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    model.generation_config.suppress_tokens = [
        token for token, piece in enumerate(pieces) if token <= MASK or not letters.fullmatch(piece)
    ]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.generation_config.update(**DEFAULTS)
    return folder, model, tokenizer


@pytest.fixture(scope="session")
def served(checkpoint):
    """The model with a chat template that reads and writes tool calls; its grammars are compiled in one process."""
    served = served_model(checkpoint, chat_template=TEMPLATE)
    yield served
    served.grammars.close()


@pytest.fixture(scope="session")
def server(checkpoint):
    """The port of a running `wedlm serve`, which is interrupted at the end while it has requests to answer."""
    options = [text for name, value in DEFAULTS.items() for text in (f"--{name.replace('_', '-')}", value)]
    with started_server(checkpoint[0], *options) as (process, port):
        yield port
        stream = client_of(port).chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, max_tokens=29_000, extra_body=autoregressive()
        )
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(post, port, "/v1/completions", {"prompt": "the cat", "max_tokens": 29_000})
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        status, answer = whole.result()
        assert status == 503 and "The server is ending." in answer
        with pytest.raises(openai.APIError) as error:
            list(stream)
        assert error.value.message == "The server is ending."
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0 and "CancelledError" not in errors, errors


@pytest.fixture(scope="session")
def client(server):
    return client_of(server)
