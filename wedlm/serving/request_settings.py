"""The fields of a request: their checks, and the generation settings that they ask for."""

import json
import math
from contextlib import suppress

from fastapi import HTTPException
from transformers import GenerationConfig

from wedlm.generation.parameters import check_parameters
from wedlm.serving.stop_strings import as_list

NUMBERS = {  # kind, least, most
    "temperature": (float, 0, math.inf),
    "top_p": (float, 0, 1),
    "frequency_penalty": (float, -2, 2),
    "max_tokens": (int, 1, math.inf),
    "max_completion_tokens": (int, 1, math.inf),
    "seed": (int, -(2**63), 2**63 - 1),
}


def check_fields(body: dict) -> None:
    """Refuses numbers out of range and stop strings that are no texts."""
    for name, (kind, least, most) in NUMBERS.items():
        value = body.get(name)
        is_kind = isinstance(value, int | kind) and not isinstance(value, bool)
        if value is not None and not (is_kind and least <= value <= most):
            noun = "an integer" if kind is int else "a number"
            limits = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
            raise HTTPException(400, f"{name}={value!r} is not {noun} {limits}; correct it.")
    stop = body.get("stop")
    if stop is not None and not all(isinstance(text, str) and text for text in as_list(stop)):
        raise HTTPException(400, f"stop={stop!r} is neither a text nor a list of texts; correct it.")


def check_messages(body: dict) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise HTTPException(
            400, f"messages={messages!r} is not a list of messages such as {{'role': 'user', 'content': 'Hello'}}."
        )


def is_message(message: object) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and isinstance(part.get("text"), str) and "type" in part for part in content)
    return content is None or isinstance(content, str)


def given_settings(body: dict) -> dict:
    """The content of `extra_body={"generation_config": ...}`, an object or the JSON text of one."""
    given = body.get("generation_config")
    if isinstance(given, str):
        with suppress(json.JSONDecodeError):
            given = json.loads(given)
    if given is not None and not isinstance(given, dict):
        raise ValueError(f'generation_config={given!r} is not a JSON object such as {{"decoding": "autoregressive"}}.')
    return given or {}


def max_tokens_of(body: dict) -> int | None:
    max_tokens = body.get("max_completion_tokens")
    return body.get("max_tokens") if max_tokens is None else max_tokens


def body_for_transformers(body: dict) -> dict:
    """The fields that transformers' server reads; it knows neither `max_completion_tokens` nor a seed per request."""
    rest = {name: value for name, value in body.items() if name != "seed"}
    return rest | {"max_tokens": max_tokens_of(body), "stop": body.get("stop") or None, "generation_config": None}


def complete(config: GenerationConfig, body: dict, given: dict, max_positions: int) -> GenerationConfig:
    """Finishes the config that transformers' server made of a request.

    Args:
        config (`GenerationConfig`): The model's settings with those of the request; it is changed and returned.
        body (`dict`): The request.
        given (`dict`): Its `given_settings`, which win over its other fields.
        max_positions (`int`): The length of text that the model reads.
    """
    if body.get("temperature") == 0:
        config.temperature = None  # `given` may ask for draws, and transformers refuses draws at temperature 0
    elif body.get("temperature") is not None or body.get("top_p") is not None:
        config.do_sample = True
    if max_tokens_of(body) is None:
        config.max_new_tokens = min(config.max_new_tokens, max_positions)
    try:
        unknown = config.update(**given)
    except TypeError as error:
        raise ValueError(f"generation_config={given} has a value of the wrong kind ({error}).") from error
    if unknown:
        raise ValueError(f"generation_config has {', '.join(unknown)}, unknown to generate(); leave it out.")
    check_parameters(config)
    for number in (config.max_new_tokens, config.max_length):
        if number is not None and number > max_positions:  # the cache takes memory for all of them
            raise ValueError(
                f"{number} tokens are more than max_position_embeddings={max_positions} of this model; ask for fewer."
            )
    config.return_dict_in_generate = False  # transformers' server reads tensors
    config.seed = body.get("seed")  # the worker takes it out again
    return config
