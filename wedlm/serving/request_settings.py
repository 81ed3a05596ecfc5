"""The fields of a request: their checks, and the generation settings that they ask for."""

import inspect
import json
import math
import sys
from collections.abc import Collection
from contextlib import suppress
from copy import deepcopy
from reprlib import repr as shown  # of a value that may be megabytes

from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from wedlm.generation.parameters import DEFAULTS, check_parameters
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.limits import (
    BIASES,
    CHOICES,
    LOOKED_UP,
    MATCHED,
    STOP_CHARACTERS,
    STOP_STRINGS,
    TOP_LOGPROBS,
    WINDOW_SIZE,
)
from wedlm.serving.stop_strings import as_list

SHARED_FIELDS = {
    "frequency_penalty", "generation_config", "logit_bias", "logprobs", "max_tokens", "model", "n", "presence_penalty",
    "seed", "stop", "stream", "stream_options", "temperature", "top_p",
}  # fmt: skip
CHAT_FIELDS = SHARED_FIELDS | {
    "chat_template_kwargs", "max_completion_tokens", "messages", "parallel_tool_calls", "response_format",
    "tool_choice", "tools", "top_logprobs",
}  # fmt: skip
COMPLETION_FIELDS = SHARED_FIELDS | {"prompt"}
# Fields that change no answer: notes for OpenAI's records, caches and prices.
IGNORED_FIELDS = {
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
# Fields that are not offered, each with the values besides null that ask for nothing.
NOT_OFFERED = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
TEXT_PARTS = ("text", "input_text", "output_text")  # transformers reads no other part of a message
NEW_TOKENS = 1024  # of an answer that sets no limit, as in transformers' own server
LARGEST = {int: 2**63, float: sys.float_info.max}  # what torch can read
NUMBERS = {  # kind, least, most
    "temperature": (float, 0, math.inf),
    "top_p": (float, 0, 1),
    "frequency_penalty": (float, -2, 2),
    "presence_penalty": (float, -2, 2),
    "n": (int, 1, CHOICES),
    "top_logprobs": (int, 0, TOP_LOGPROBS),
    "max_tokens": (int, 1, math.inf),
    "max_completion_tokens": (int, 1, math.inf),
    "seed": (int, -(2**63), 2**63 - 1),
}

# The settings that generation_config may bring besides those in `complete`. Any other could take memory or time
# without bound, or load code.
NUMBER_SETTINGS = {  # kind, least, most
    "max_new_tokens": (int, 1, math.inf),
    "max_length": (int, 1, math.inf),
    "min_new_tokens": (int, 0, math.inf),
    "min_length": (int, 0, math.inf),
    "max_time": (float, 0, math.inf),
    "temperature": (float, 0, math.inf),
    "top_k": (int, 0, math.inf),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_h": (float, 0, 1),
    "typical_p": (float, 0, 1),
    "epsilon_cutoff": (float, 0, 1),
    "eta_cutoff": (float, 0, 1),
    "repetition_penalty": (float, 0, math.inf),
    "encoder_repetition_penalty": (float, 0, math.inf),
    "no_repeat_ngram_size": (int, 0, math.inf),
    "encoder_no_repeat_ngram_size": (int, 0, math.inf),
    "prompt_lookup_num_tokens": (int, 0, LOOKED_UP),
    "max_matching_ngram_size": (int, 1, MATCHED),
}
FLAG_SETTINGS = {"do_sample", "remove_invalid_values", "renormalize_logits"}
TOKEN_SETTINGS = {"bos_token_id", "forced_bos_token_id", "pad_token_id"}
TOKENS_SETTINGS = {"begin_suppress_tokens", "eos_token_id", "forced_eos_token_id", "suppress_tokens"}
OTHER_SETTINGS = {*DEFAULTS, "bad_words_ids", "sequence_bias", "stop_strings"}
# Settings that are not offered, each with the values besides null that ask for nothing.
SETTINGS_NOT_OFFERED = {
    "cache_implementation": ("dynamic",),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_logits": (False,),
    "output_scores": (False,),
    "return_dict_in_generate": (False,),
    "use_cache": (True,),
}
RECORDS = {"transformers_version"}  # written by GenerationConfig.to_json_string()


def check_fields(body: dict, fields: Collection[str]) -> None:
    """Refuses fields that are not offered, numbers out of range and texts that are none.

    Args:
        body (`dict`): The request.
        fields (`Collection[str]`): The fields that its route reads.
    """
    check_characters(body)
    for name in sorted(body.keys() - fields - IGNORED_FIELDS):
        if name not in NOT_OFFERED:
            raise ValueError(f"The request has a field {shown(name)}, which this server does not know; leave it out.")
        refuse_unless_nothing(name, body[name], NOT_OFFERED[name])
    for name, limits in NUMBERS.items():
        check_number(name, body.get(name), limits)
    check_stop_strings("stop", body.get("stop"))
    for name in ("stream", "parallel_tool_calls"):
        if not isinstance(body.get(name), bool | None):
            raise ValueError(f"{name}={shown(body[name])} is neither true nor false; correct it.")
    check_stream_options(body)
    check_logprobs(body)


def check_stream_options(body: dict) -> None:
    options = body.get("stream_options")
    if options is None:
        return
    if not body.get("stream"):
        raise ValueError(f"stream_options={shown(options)} is only for stream=true; leave it out.")
    if not isinstance(options, dict) or not all(isinstance(value, bool | None) for value in options.values()):
        raise ValueError(f"stream_options={shown(options)} is not an object such as {{'include_usage': true}}.")
    for name in sorted(options.keys() - {"include_usage"}):
        refuse_unless_nothing(f"stream_options.{name}", options[name], (False,))


def sends_usage(body: dict) -> bool:
    """Whether a stream ends with an event that tells the number of tokens."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def check_logprobs(body: dict) -> None:
    """Refuses a wrong `logprobs`: a flag for chats, which have `top_logprobs` beside it, and a number otherwise."""
    logprobs = body.get("logprobs")
    if "prompt" in body:
        check_number("logprobs", logprobs, (int, 0, TOP_LOGPROBS))
    elif not isinstance(logprobs, bool | None):
        raise ValueError(f"logprobs={shown(logprobs)} is neither true nor false; correct it.")
    elif body.get("top_logprobs") and not logprobs:
        raise ValueError(f"top_logprobs={body['top_logprobs']} needs logprobs=true; set it.")


def num_logprobs(body: dict) -> int | None:
    """The number of likeliest tokens to tell beside each token; None where no log-probabilities are asked for."""
    if "prompt" in body:
        return body.get("logprobs")
    return (body.get("top_logprobs") or 0) if body.get("logprobs") else None


def check_characters(value: object) -> None:
    """Refuses half a surrogate pair, which JSON can write and no tokenizer reads."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{error.object[error.start]!r} in the request is half of a surrogate pair and no character; take it out."
        ) from error


def refuse_unless_nothing(name: str, value: object, nothing: Collection) -> None:
    if value is not None and not any(type(value) is type(each) and value == each for each in nothing):
        raise ValueError(f"{name}={shown(value)} is not offered by this server; leave it out.")


def is_number(value: object, kind: type = float) -> bool:
    return isinstance(value, int | kind) and not isinstance(value, bool) and abs(value) <= LARGEST[kind]


def check_number(name: str, value: object, limits: tuple[type, float, float]) -> None:
    kind, least, most = limits
    if value is not None and not (is_number(value, kind) and least <= value <= most):
        noun = "an integer" if kind is int else "a number"
        bounds = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name}={shown(value)} is not {noun} {bounds}; correct it.")


def check_stop_strings(name: str, value: object) -> None:
    texts = as_list(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name}={shown(value)} is neither a text nor a list of texts; correct it.")
    if len(texts) > STOP_STRINGS or any(len(text) > STOP_CHARACTERS for text in texts):
        raise ValueError(
            f"{name}={shown(value)} is more than {STOP_STRINGS} texts of {STOP_CHARACTERS} characters; shorten it."
        )


def check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise ValueError(
            f"messages={shown(messages)} is not a list of messages such as {{'role': 'user', 'content': 'Hello'}}."
        )


def is_message(message: object) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(
            isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str)
            for part in content
        )
    return content is None or isinstance(content, str)


def given_messages(body: dict) -> list[dict]:
    """The messages without fields that hold nothing: transformers reads no text beside `"tool_calls": null`."""
    check_messages(body.get("messages"))
    return [
        {name: value for name, value in message.items() if value is not None and value != []}
        for message in body["messages"]
    ]


def tools_of(body: dict, tokenizer: PreTrainedTokenizerBase) -> list[dict] | None:
    """The tools that the chat template writes into the prompt."""
    tools = body.get("tools")
    if tools in (None, []) or body.get("tool_choice") == "none":
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"tools={shown(tools)} is not a list of objects; correct it.")
    if "tools" not in tokenizer.get_chat_template(tools=tools):
        raise ValueError("tools are not read by the chat template of this model; leave them out.")
    return tools


def template_variables(body: dict, tokenizer: PreTrainedTokenizerBase) -> dict:
    """The variables of the chat template that a request sets, such as `enable_thinking`."""
    given = body.get("chat_template_kwargs")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"chat_template_kwargs={shown(given)} is not a JSON object; correct it.")
    # Arguments of transformers' functions, and variables that they set themselves.
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages", "self"}
    taken |= {*inspect.signature(render_jinja_template).parameters, *tokenizer.special_tokens_map}
    if names := sorted(given.keys() & taken):
        raise ValueError(
            f"chat_template_kwargs sets {', '.join(names)}, and a request may set only variables of the chat "
            "template's own, such as enable_thinking; leave it out."
        )
    return given


def given_settings(body: dict) -> dict:
    """The content of `extra_body={"generation_config": ...}`, an object or the JSON text of one."""
    given = body.get("generation_config")
    if isinstance(given, str):
        with suppress(json.JSONDecodeError):
            given = json.loads(given)
    if given is not None and not isinstance(given, dict):
        raise ValueError(
            f'generation_config={shown(given)} is not a JSON object such as {{"decoding": "autoregressive"}}.'
        )
    check_characters(given)
    return given or {}


def max_tokens_of(body: dict) -> int | None:
    max_tokens = body.get("max_completion_tokens")
    return body.get("max_tokens") if max_tokens is None else max_tokens


def is_token(value: object, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size


def biases_of(logit_bias: object, vocab_size: int) -> dict[tuple[int], float]:
    """The bias of each token, from OpenAI's form: an object whose keys are tokens."""
    if (
        not isinstance(logit_bias, dict)
        or len(logit_bias) > BIASES
        or not all(token.isdecimal() and len(token) < 20 and int(token) < vocab_size for token in logit_bias)
        or not all(is_number(bias) and -100 <= bias <= 100 for bias in logit_bias.values())
    ):
        raise ValueError(
            f"logit_bias={shown(logit_bias)} is not an object of up to {BIASES} tokens from 0 to {vocab_size - 1} "
            "with biases from -100 to 100; correct it."
        )
    return {(int(token),): float(bias) for token, bias in logit_bias.items()}


def checked_settings(given: dict, vocab_size: int) -> dict:
    """The settings of generation_config, with whatever is out of bounds refused and what asks for nothing left out."""
    settings = {}
    for name, value in given.items():
        if name in NUMBER_SETTINGS:
            check_number(name, value, NUMBER_SETTINGS[name])
            if value is not None:
                value = NUMBER_SETTINGS[name][0](value)  # JSON may write 2.0 as 2, which transformers may refuse
        elif name in FLAG_SETTINGS:
            if not isinstance(value, bool | None):
                raise ValueError(f"{name}={shown(value)} is neither true nor false; correct it.")
        elif name in TOKEN_SETTINGS:
            if value is not None and not is_token(value, vocab_size):
                raise ValueError(f"{name}={shown(value)} is not a token from 0 to {vocab_size - 1}; correct it.")
        elif name in TOKENS_SETTINGS and value is not None:
            tokens = value if isinstance(value, list) else [value]
            if not tokens or not all(is_token(token, vocab_size) for token in tokens):
                raise ValueError(
                    f"{name}={shown(value)} is not a list of tokens from 0 to {vocab_size - 1}; correct it, or set "
                    "it to null."
                )
            value = tokens
        elif name not in OTHER_SETTINGS | TOKENS_SETTINGS:
            if name not in vars(GenerationConfig()) or name.startswith("_"):
                raise ValueError(f"generation_config has {shown(name)}, unknown to generate(); leave it out.")
            if name not in RECORDS:
                refuse_unless_nothing(f"generation_config.{name}", value, SETTINGS_NOT_OFFERED.get(name, ()))
            continue
        settings[name] = value
    check_stop_strings("stop_strings", settings.get("stop_strings"))
    if (words := settings.get("bad_words_ids")) is not None:
        check_sequences("bad_words_ids", words, words, vocab_size)
    if (biases := settings.get("sequence_bias")) is not None:
        is_pairs = isinstance(biases, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in biases)
        is_pairs = is_pairs and all(is_number(bias) for _, bias in biases)
        check_sequences("sequence_bias", biases, [tokens for tokens, _ in biases] if is_pairs else None, vocab_size)
        settings["sequence_bias"] = {tuple(tokens): float(bias) for tokens, bias in biases}
    return settings


def check_sequences(name: str, value: object, sequences: object, vocab_size: int) -> None:
    is_list = isinstance(sequences, list) and 1 <= len(sequences) <= BIASES
    if not is_list or not all(
        isinstance(tokens, list) and tokens and all(is_token(token, vocab_size) for token in tokens)
        for tokens in sequences
    ):
        form = "[tokens, bias]" if name == "sequence_bias" else "tokens"
        raise ValueError(
            f"{name}={shown(value)} is not a list of 1 to {BIASES} {form}, with tokens from 0 to {vocab_size - 1}; "
            "correct it."
        )


def settings_of(body: dict, model: WeDLMForCausalLM, prompt_length: int) -> GenerationConfig:
    """The model's own settings, then those of the request, then those of its generation_config."""
    max_positions, vocab_size = model.config.max_position_embeddings, model.config.vocab_size
    given, config = given_settings(body), deepcopy(model.generation_config)
    temperature, top_p, max_tokens = body.get("temperature"), body.get("top_p"), max_tokens_of(body)
    config.max_new_tokens = max_tokens or min(max(config.max_new_tokens or 0, NEW_TOKENS), max_positions)
    if temperature is not None or top_p is not None:
        config.do_sample = temperature != 0
    if temperature is not None:
        # `given` may ask for draws, and transformers refuses draws at temperature 0.
        config.temperature = float(temperature) or None
    if top_p is not None:
        config.top_p = float(top_p)
    if body.get("stop"):
        config.stop_strings = body["stop"]
    if body.get("logit_bias"):
        config.sequence_bias = biases_of(body["logit_bias"], vocab_size)
    config.update(**checked_settings(given, vocab_size))
    if config.eos_token_id is None:
        config.eos_token_id = model.generation_config.eos_token_id  # as generate() does
    check_parameters(config)
    if config.repetition_penalty is not None and config.repetition_penalty <= 0:
        raise ValueError(f"repetition_penalty={config.repetition_penalty} is not above 0; raise it.")
    if (given.get("window_size") or 0) > WINDOW_SIZE:  # whoever runs the server may have set more
        raise ValueError(f"window_size={given['window_size']} is more than {WINDOW_SIZE} slots; make it smaller.")
    for number in (config.max_new_tokens, config.max_length):
        if number is not None and number > max_positions:  # the cache takes memory for all of them
            raise ValueError(
                f"{number} tokens are more than max_position_embeddings={max_positions} of this model; ask for fewer."
            )
    # No text is longer, and transformers would say so on standard error for each request.
    if config.min_new_tokens is not None:
        config.min_new_tokens = min(config.min_new_tokens, config.max_new_tokens)
    if config.min_length is not None:
        config.min_length = min(config.min_length, prompt_length + config.max_new_tokens)
    config.return_dict_in_generate = False  # the batch returns tokens
    return config
