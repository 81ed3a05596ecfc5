"""Tokenizes a record into a sample, tokens with labels, which may be cut or dropped."""

import json
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from wedlm.training.chat_template import Renderer, render_conversation, tokenize_with_loss
from wedlm.training.data_files import TOO_DEEP, Record, parse_record
from wedlm.training.data_options import DataOptions
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET

# The outcomes of a record: it becomes a sample, whole or truncated, or it is dropped for one of the reasons.
WHOLE, TRUNCATED = "whole", "truncated"
TOO_LONG = "longer than max_length"
NOTHING_LEFT = "cut before the first token with loss"
BLANK = "blank text"
HAS_MASK = "the MASK token in the data"
BORDERS = ("\n", ".")  # characters that stay tokens of their own before most texts


class Tokens(NamedTuple):
    input_ids: list[int]
    has_loss: list[bool]
    num_rewritten: int = 0  # see DataSummary
    num_without_end: int = 0


def tokenize_record(
    columns: dict, index: int, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> dict[str, list[int] | str | int]:
    """Returns the columns of a sample, which has no tokens if it is dropped, and the columns that are counted."""
    record = parse_record(columns, index)
    tokens = tokens_of(record, tokenizer, options)
    outcome, input_ids, has_loss = cut_or_drop(tokens, tokenizer.mask_token_id, options)
    return {
        "input_ids": input_ids,
        "labels": [token if loss else NO_TARGET for token, loss in zip(input_ids, has_loss, strict=True)],
        "sample_lengths": [len(input_ids)],
        "sample_indices": [record.number],
        "outcome": outcome,
        "num_tokens": len(input_ids),
        "num_loss_tokens": sum(has_loss),
        "num_rewritten": tokens.num_rewritten,
        "num_without_end": tokens.num_without_end,
    }


def cut_or_drop(tokens: Tokens, mask_token_id: int, options: DataOptions) -> tuple[str, list[int], list[bool]]:
    """Returns the outcome with the tokens that are left, and whether each has loss."""
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


def tokens_of(record: Record, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> Tokens:
    fields, where = record.fields, record.where
    kinds = [name for name in ("messages", "prompt", "text") if name in fields]
    if "completion" in fields and "prompt" not in fields:
        raise TrainingError(f"{where} has a completion without a prompt; add one, or call the field text.")
    if not kinds:
        raise TrainingError(f"{where} has none of the fields messages, prompt and completion, or text; add one.")
    if len(kinds) > 1:
        raise TrainingError(f"{where} has both {kinds[0]} and {kinds[1]}; leave only one kind of field.")
    if kinds == ["text"]:
        return tokens_of_text(record, tokenizer, options)
    if kinds == ["prompt"]:
        return tokens_of_prompt_and_completion(record, tokenizer, options)
    return tokens_of_messages(fields["messages"], 0, record, tokenizer, options)


def tokens_of_text(record: Record, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> Tokens:
    text = record.fields["text"]
    check_text(text, "text", record.where)
    if not text.strip():
        return Tokens([], [])
    input_ids = with_end(tokenizer(text, verbose=False)["input_ids"], tokenizer, options)
    return Tokens(input_ids, [True] * len(input_ids))


def tokens_of_prompt_and_completion(
    record: Record, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> Tokens:
    where = record.where
    if "completion" not in record.fields:
        raise TrainingError(f"{where} has a prompt without a completion; add one, or call the field text.")
    prompt, completion = record.fields["prompt"], record.fields["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return tokens_of_messages(prompt + completion, len(prompt), record, tokenizer, options)
    check_text(prompt, "prompt", where)
    check_text(completion, "completion", where)
    if not completion.strip():
        raise TrainingError(f"{where} has an empty completion; write one, or remove the record.")
    # The prompt is tokenized alone, as generate() gets it. A token across the border would hide how the answer begins.
    prompt_ids = tokenizer(prompt, verbose=False)["input_ids"]
    answer_ids = with_end(ids_behind_text(completion, tokenizer), tokenizer, options)
    return Tokens(prompt_ids + answer_ids, [False] * len(prompt_ids) + [True] * len(answer_ids))


def tokens_of_messages(
    messages: list, first_message: int, record: Record, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> Tokens:
    """Tokenizes a conversation with loss on its assistant turns from `first_message` on, or on the last of them."""
    where = record.where
    if not isinstance(messages, list) or not messages:
        found = "no messages" if messages == [] else f"messages of type {type(messages).__name__}"
        raise TrainingError(f"{where} has {found}; write a list of messages, each with role and content.")
    messages = [checked_message(message, i, where) for i, message in enumerate(messages)]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first_message]
    if not turns:
        part = "completion" if first_message else "messages"
        raise TrainingError(f"{where} has no assistant turn in its {part}, so nothing to learn; add one.")
    if tokenizer.chat_template is None:
        raise TrainingError(
            f"{where} has messages, but the tokenizer has no chat template; set tokenizer.chat_template, "
            "or give prompt and completion as texts."
        )
    render = Renderer(tokenizer, checked_tools(record.fields.get("tools"), where), where)
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


def ids_behind_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokenizes a text that follows another one.

    A tokenizer that comes from SentencePiece puts a space in front of a text, but not behind a character before it.
    """
    alone, *pairs = tokenizer(
        [text, *(before + rest for before in BORDERS for rest in ("", text))], add_special_tokens=False, verbose=False
    )["input_ids"]
    for before, whole in zip(pairs[::2], pairs[1::2], strict=True):
        if whole[: len(before)] == before:
            return whole[len(before) :]
    return alone


def with_end(input_ids: list[int], tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> list[int]:
    """Appends the end token, unless the data has it, and the extra ones."""
    end = tokenizer.eos_token_id
    has_end = bool(input_ids) and input_ids[-1] == end
    return input_ids + [end] * (options.extra_end_tokens + (not has_end))


def up_to_last_loss(input_ids: list[int], has_loss: list[bool]) -> tuple[list[int], list[bool]]:
    length = next((i for i in range(len(has_loss), 0, -1) if has_loss[i - 1]), 0)
    return input_ids[:length], has_loss[:length]


# --- Checks ---


def check_text(value: object, name: str, where: str) -> None:
    if not isinstance(value, str):
        raise TrainingError(f"{where} has a {name} of type {type(value).__name__}; write a text.")


def checked_message(message: object, i: int, where: str) -> dict:
    """Returns the message without fields that are None, as transformers passes it to the template."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise TrainingError(f"{where}: messages[{i}] is not an object with a role and a content; write one.")
    message = {name: value for name, value in message.items() if value is not None}
    content = message.get("content", "" if message.get("tool_calls") else None)
    if not isinstance(content, str):
        raise TrainingError(
            f"{where}: the content of messages[{i}] is of type {type(content).__name__}; write a text."
        )
    if message["role"] == "assistant" and not content.strip() and not message.get("tool_calls"):
        raise TrainingError(f"{where}: messages[{i}] is an assistant turn with empty content; write it, or remove it.")
    return message


def checked_tools(tools: object, where: str) -> list | None:
    """Returns the tools as a list; datasets often keep them as JSON text."""
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except json.JSONDecodeError as error:
        raise TrainingError(f"{where}: its tools are not JSON ({error.msg}); correct them.") from None
    except RecursionError:
        raise TrainingError(f"{where}: its tools are {TOO_DEEP}.") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise TrainingError(f"{where}: its tools are not a list of objects; write one.")
    return tools or None
