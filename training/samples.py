"""One row becomes one sample: its tokens, which of them have loss, and what is wrong with it."""

import json
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from wedlm.training.conversation import Renderer, render_conversation, tokenize_with_loss
from wedlm.training.data_options import DataOptions
from wedlm.training.errors import TrainingError
from wedlm.training.rows import fields_of

IGNORED = -100  # the label of a token without loss

# What becomes of a row: it is a sample, or it is dropped for one of the reasons.
WHOLE, TRUNCATED = "whole", "truncated"
TOO_LONG = "longer than max_length"
NOTHING_LEFT = "cut before the first token with loss"
BLANK = "blank text"
HAS_MASK = "the MASK token in the data"


class Tokens(NamedTuple):
    input_ids: list[int]
    has_loss: list[bool]
    num_rewritten: int = 0
    num_without_end: int = 0


def tokenize_row(row: dict, index: int, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> dict:
    """The columns of a sample, and those that are counted; a dropped sample has no tokens."""
    fields, where, index = fields_of(row, index)
    tokens = tokens_of(fields, where, tokenizer, options)
    outcome, input_ids, has_loss = cut_or_drop(tokens, tokenizer.mask_token_id, options)
    return {
        "input_ids": input_ids,
        "labels": [token if loss else IGNORED for token, loss in zip(input_ids, has_loss, strict=True)],
        "sample_lengths": [len(input_ids)],
        "sample_indices": [index],
        "outcome": outcome,
        "num_tokens": len(input_ids),
        "num_loss_tokens": sum(has_loss),
        "num_rewritten": tokens.num_rewritten,
        "num_without_end": tokens.num_without_end,
    }


def cut_or_drop(tokens: Tokens, mask_token_id: int, options: DataOptions) -> tuple[str, list[int], list[bool]]:
    input_ids, has_loss = tokens.input_ids, tokens.has_loss
    if not input_ids:
        return BLANK, [], []
    if mask_token_id in input_ids:
        return HAS_MASK, [], []
    if len(input_ids) <= options.max_length:
        return WHOLE, input_ids, has_loss
    if options.overlong == "drop":
        return TOO_LONG, [], []
    input_ids, has_loss = up_to_last_loss(input_ids[: options.max_length], has_loss[: options.max_length])
    return (TRUNCATED if input_ids else NOTHING_LEFT), input_ids, has_loss


def tokens_of(fields: dict, where: str, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> Tokens:
    kinds = [name for name in ("messages", "prompt", "text") if name in fields]
    if "completion" in fields and "prompt" not in fields:
        raise TrainingError(f"{where} has a completion without a prompt; add one, or call the field text.")
    if not kinds:
        raise TrainingError(f"{where} has none of the fields messages, prompt and completion, or text; add one.")
    if len(kinds) > 1:
        raise TrainingError(f"{where} has both {kinds[0]} and {kinds[1]}; leave only one kind of field.")
    end_tokens = [tokenizer.eos_token_id] * options.extra_end_tokens
    if kinds == ["text"]:
        check_text(fields["text"], "text", where)
        if not fields["text"].strip():
            return Tokens([], [])
        input_ids = with_end(tokenizer(fields["text"], verbose=False)["input_ids"], tokenizer) + end_tokens
        return Tokens(input_ids, [True] * len(input_ids))
    if kinds == ["prompt"]:
        if "completion" not in fields:
            raise TrainingError(f"{where} has a prompt without a completion; add one, or call the field text.")
        prompt, completion = fields["prompt"], fields["completion"]
        if isinstance(prompt, list) and isinstance(completion, list):
            messages, first_message = prompt + completion, len(prompt)
            return tokens_of_messages(messages, first_message, fields.get("tools"), where, tokenizer, options)
        check_text(prompt, "prompt", where)
        check_text(completion, "completion", where)
        if not completion.strip():
            raise TrainingError(f"{where} has an empty completion; write one, or remove the row.")
        # The prompt by itself, as generate() gets it: a token across the border would hide the answer's beginning.
        prompt_ids = tokenizer(prompt, verbose=False)["input_ids"]
        answer = tokenizer(completion, add_special_tokens=False, verbose=False)["input_ids"]
        answer = with_end(answer, tokenizer) + end_tokens
        return Tokens(prompt_ids + answer, [False] * len(prompt_ids) + [True] * len(answer))
    return tokens_of_messages(fields["messages"], 0, fields.get("tools"), where, tokenizer, options)


def tokens_of_messages(
    messages: list,
    first_message: int,
    tools: object,
    where: str,
    tokenizer: PreTrainedTokenizerBase,
    options: DataOptions,
) -> Tokens:
    """A conversation, with loss on its assistant turns from `first_message` on, or on the last of them."""
    messages = [checked_message(message, i, where) for i, message in enumerate(checked_list(messages, where))]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first_message]
    if not turns:
        part = "completion" if first_message else "messages"
        raise TrainingError(f"{where} has no assistant turn in its {part}, so nothing to learn; add one.")
    if tokenizer.chat_template is None:
        raise TrainingError(
            f"{where} has messages, and the tokenizer has no chat template; set tokenizer.chat_template, "
            "or give prompt and completion as texts."
        )
    render = Renderer(tokenizer, checked_tools(tools, where), where)
    first_turn = turns[-1] if options.loss_on == "last" else first_message
    rendered = render_conversation(messages, first_turn, render)
    input_ids, has_loss = up_to_last_loss(*tokenize_with_loss(rendered.text, rendered.spans, tokenizer))
    if not input_ids:
        raise TrainingError(
            f"{where}: the chat template marks nothing as written by the assistant; put its "
            "{% generation %} marks around the assistant's content, or remove them."
        )
    input_ids += [tokenizer.eos_token_id] * options.extra_end_tokens
    has_loss += [True] * options.extra_end_tokens
    last = tokenizer.added_tokens_decoder.get(input_ids[-1])
    return Tokens(input_ids, has_loss, rendered.num_rewritten, int(last is None or not last.special))


def with_end(input_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    end = tokenizer.eos_token_id
    return input_ids if input_ids and input_ids[-1] == end else [*input_ids, end]


def up_to_last_loss(input_ids: list[int], has_loss: list[bool]) -> tuple[list[int], list[bool]]:
    length = next((i for i in range(len(has_loss), 0, -1) if has_loss[i - 1]), 0)
    return input_ids[:length], has_loss[:length]


def check_text(value: object, name: str, where: str) -> None:
    if not isinstance(value, str):
        raise TrainingError(f"{where} has a {name} of type {type(value).__name__}; it must be a text.")


def checked_list(messages: object, where: str) -> list:
    if not isinstance(messages, list) or not messages:
        found = "no messages" if messages == [] else f"messages of type {type(messages).__name__}"
        raise TrainingError(f"{where} has {found}; it must be a list of them, each with role and content.")
    return messages


def checked_message(message: object, i: int, where: str) -> dict:
    """The message without fields that are None, as transformers passes it to the template."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise TrainingError(f"{where}: messages[{i}] must be an object with a role and a content.")
    message = {name: value for name, value in message.items() if value is not None}
    content = message.get("content", "" if message.get("tool_calls") else None)
    if not isinstance(content, str):
        raise TrainingError(f"{where}: the content of messages[{i}] must be a text, not {type(content).__name__}.")
    if message["role"] == "assistant" and not content.strip() and not message.get("tool_calls"):
        raise TrainingError(f"{where}: messages[{i}] is an assistant turn with empty content; write it, or remove it.")
    return message


def checked_tools(tools: object, where: str) -> list | None:
    """The tools as a list; datasets often keep them as JSON text."""
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except json.JSONDecodeError as error:
        raise TrainingError(f"{where}: its tools are no JSON ({error.msg}).") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise TrainingError(f"{where}: its tools must be a list of objects.")
    return tools or None
