"""Rows of text become rows of tokens with labels: read, tokenize, cut or drop and count, pack."""

import dataclasses
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Literal, NamedTuple, get_args

from datasets import Dataset, Features, IterableDataset, List, Value, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from wedlm.training.conversation import Renderer, render_conversation, tokenize_with_loss
from wedlm.training.errors import TrainingError
from wedlm.training.packing import pack, pack_batch
from wedlm.training.rows import NO_ROWS, Paths, fields_of, load_rows

IGNORED = -100  # the label of a token without loss
SAMPLE_COLUMNS = ("input_ids", "labels", "sample_lengths", "sample_indices")
COUNT_COLUMNS = ("outcome", "num_tokens", "num_loss_tokens", "num_rewritten", "num_without_end")
TOKENS = List(Value("int32"))
INDICES = List(Value("int64"))
SAMPLE_FEATURES = Features(
    {"input_ids": TOKENS, "labels": TOKENS, "sample_lengths": INDICES, "sample_indices": INDICES}
)
FEATURES = Features(
    {**SAMPLE_FEATURES, "outcome": Value("string"), **{name: Value("int64") for name in COUNT_COLUMNS[1:]}}
)
CODE = ("wedlm.training.conversation", "wedlm.training.rows", __name__)
STREAM_BUFFER = 512  # samples that a stream packs at a time

# What becomes of a row: it is a sample, or it is dropped for one of the reasons.
WHOLE, TRUNCATED = "whole", "truncated"
TOO_LONG = "longer than max_length"
NOTHING_LEFT = "cut before the first token with loss"
BLANK = "blank text"
HAS_MASK = "the MASK token in the data"


@dataclass
class DataOptions:
    """What rows become; the fields are also arguments of the command line."""

    max_length: int = field(default=2048, metadata={"help": "The most tokens of a row, packed or not."})
    overlong: Literal["truncate", "drop"] = field(
        default="truncate",
        metadata={"help": "What becomes of a sample that is longer than max_length; it is counted."},
    )
    loss_on: Literal["all", "last"] = field(
        default="all", metadata={"help": "The assistant turns of a conversation that have loss."}
    )
    extra_end_tokens: int = field(
        default=0, metadata={"help": "End tokens with loss behind the one that ends an answer or a text."}
    )
    packing: bool = field(
        default=False, metadata={"help": "Put several samples into a row, best fit, none of them cut."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read files while training, without a copy in the cache of datasets."}
    )
    num_proc: int | None = field(default=None, metadata={"help": "Processes that tokenize."})

    def __post_init__(self):
        if self.max_length < 2:
            raise TrainingError(f"max_length={self.max_length} is too small; a row needs at least 2 tokens.")
        if self.extra_end_tokens < 0:
            raise TrainingError(f"extra_end_tokens={self.extra_end_tokens} must be 0 or more.")
        if self.num_proc is not None and self.num_proc < 1:
            raise TrainingError(f"num_proc={self.num_proc} must be 1 or more, or None.")
        for name in ("overlong", "loss_on"):
            choices = get_args(type(self).__dataclass_fields__[name].type)
            if getattr(self, name) not in choices:
                raise TrainingError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, choices))}.")


@dataclass
class DataSummary:
    """What became of the rows. Of a stream it counts what this process has read so far, every pass."""

    max_length: int
    num_read: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    num_loss_tokens: int = 0
    num_truncated: int = 0
    num_rewritten: int = 0  # assistant turns that the chat template writes otherwise than when they are the last
    num_without_end: int = 0  # conversations whose last answer ends without a special token
    dropped: Counter = field(default_factory=Counter)  # by the reason
    num_packed_rows: int = 0
    num_packed_tokens: int = 0

    def count(
        self, outcome: str, num_tokens: int, num_loss_tokens: int, num_rewritten: int, num_without_end: int
    ) -> None:
        self.num_read += 1
        if outcome in (WHOLE, TRUNCATED):
            self.num_samples += 1
            self.num_tokens += num_tokens
            self.num_loss_tokens += num_loss_tokens
            self.num_truncated += outcome == TRUNCATED
            self.num_rewritten += num_rewritten
            self.num_without_end += num_without_end
        else:
            self.dropped[outcome] += 1

    def count_packed(self, lengths: Iterable[int]) -> None:
        self.num_packed_rows += 1
        self.num_packed_tokens += sum(lengths)

    @property
    def fill_ratio(self) -> float | None:
        """The share of the packed rows' places that hold a token; None without packed rows."""
        if not self.num_packed_rows:
            return None
        return self.num_packed_tokens / (self.num_packed_rows * self.max_length)

    def __str__(self) -> str:
        lines = [
            f"{self.num_read:,} rows read, {self.num_samples:,} samples: "
            f"{self.num_tokens:,} tokens, {self.num_loss_tokens:,} of them with loss."
        ]
        if self.num_truncated:
            lines.append(f"Truncated to max_length={self.max_length}: {self.num_truncated:,} samples.")
        lines += [f"Dropped: {count:,} ({reason})." for reason, count in sorted(self.dropped.items())]
        if self.num_rewritten:
            lines.append(
                f"Earlier assistant turns that the chat template changes (thinking left out, say): "
                f"{self.num_rewritten:,}; loss_on='last' leaves them without loss."
            )
        if self.num_without_end:
            lines.append(
                f"Conversations whose last answer has no end token in the chat template: {self.num_without_end:,}; "
                "a model learns no end from them without extra_end_tokens=1."
            )
        if self.num_packed_rows:
            lines.append(f"Packed into {self.num_packed_rows:,} rows, {self.fill_ratio:.1%} full.")
        return "\n".join(lines)


class Tokens(NamedTuple):
    input_ids: list[int]
    has_loss: list[bool]
    num_rewritten: int = 0
    num_without_end: int = 0


def prepare_dataset(
    data: Dataset | IterableDataset | Paths, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[Dataset | IterableDataset, DataSummary]:
    """The rows of `data` as tokens with labels, ready for the collator, and a summary that prints as a few lines.

    A row of `data` has `messages` (and perhaps `tools`), or `prompt` and `completion` (both texts or both lists of
    messages), or `text`. A row of the result ends with the last token that has loss: what stands behind it, a newline
    of the template, would only tell the masked tokens before it where the text ends.

        input_ids       [5, 6, 7, 2]
        labels          [-100, 6, 7, 2]    the token itself, not shifted; -100 has no loss
        sample_lengths  [4]                of the samples of the row, one after another
        sample_indices  [17]               the numbers of their rows in `data`

    In a stream of several shards the numbers are those that `tokenize_stream` gives, each row its own.
    """
    check_tokenizer(tokenizer)
    if isinstance(data, dict):
        raise TrainingError(f"The data has the splits {', '.join(map(repr, data))}; give one of them.")
    rows = data if isinstance(data, Dataset | IterableDataset) else load_rows(data, options.streaming)
    if isinstance(rows, IterableDataset):
        return prepare_stream(rows, tokenizer, options)
    summary = DataSummary(options.max_length)
    samples = tokenize_rows(rows, tokenizer, options)
    counts = list(zip(*(samples[name][:] for name in COUNT_COLUMNS), strict=True))
    for row in counts:
        summary.count(*row)
    check_not_empty(summary)
    samples = samples.remove_columns(COUNT_COLUMNS)
    if summary.dropped:
        samples = samples.select([i for i, (outcome, *_) in enumerate(counts) if outcome in (WHOLE, TRUNCATED)])
    if options.packing:
        samples = pack(samples, options.max_length)
        for lengths in samples["sample_lengths"]:
            summary.count_packed(lengths)
    return samples, summary


def prepare_stream(
    rows: IterableDataset, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[IterableDataset, DataSummary]:
    summary = DataSummary(options.max_length)
    first_rows = kept_samples(tokenize_rows(rows, tokenizer, options), summary)
    if next(iter(first_rows), None) is None:
        check_not_empty(summary)
    summary = DataSummary(options.max_length)
    samples = kept_samples(tokenize_rows(rows, tokenizer, options), summary)
    if options.packing:
        packing = partial(pack_and_count, max_length=options.max_length, summary=summary)
        samples = samples.map(packing, batched=True, batch_size=STREAM_BUFFER, features=SAMPLE_FEATURES)
    return samples, summary


def kept_samples(samples: IterableDataset, summary: DataSummary) -> IterableDataset:
    samples = samples.filter(partial(count_and_keep, summary=summary))
    return samples.select_columns(list(SAMPLE_COLUMNS)).cast(SAMPLE_FEATURES)


def count_and_keep(sample: dict, summary: DataSummary) -> bool:
    summary.count(*(sample[name] for name in COUNT_COLUMNS))
    return sample["outcome"] in (WHOLE, TRUNCATED)


def pack_and_count(samples: dict[str, list], max_length: int, summary: DataSummary) -> dict[str, list]:
    packed = pack_batch(samples, max_length)
    for lengths in packed["sample_lengths"]:
        summary.count_packed(lengths)
    return packed


def check_not_empty(summary: DataSummary) -> None:
    if not summary.num_read:
        raise TrainingError(NO_ROWS)
    if not summary.num_samples:
        reasons = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(summary.dropped.items()))
        raise TrainingError(
            f"No sample is left of {summary.num_read:,} rows (dropped: {reasons}); "
            f"change the data, max_length={summary.max_length} or overlong."
        )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.mask_token_id is None:
        raise TrainingError(
            "The tokenizer has no mask token; take a checkpoint from `wedlm convert`, or set tokenizer.mask_token."
        )
    if tokenizer.eos_token_id is None:
        raise TrainingError("The tokenizer has no end token; set tokenizer.eos_token.")
    if not tokenizer.is_fast:
        raise TrainingError(
            f"{type(tokenizer).__name__} cannot tell which characters a token stands for; use a fast tokenizer."
        )


def tokenize_rows(
    rows: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> Dataset | IterableDataset:
    """Every row as a sample of its own, dropped ones included: the columns of the result, and four that count."""
    function = partial(tokenize_row, tokenizer=tokenizer, options=options)
    if isinstance(rows, IterableDataset):
        return tokenize_stream(rows, function)
    return rows.with_format(None).map(
        function,
        with_indices=True,
        remove_columns=rows.column_names,
        features=FEATURES,
        num_proc=options.num_proc,
        new_fingerprint=Hasher.hash((rows._fingerprint, tokenizer_key(tokenizer), dataclasses.asdict(options))),
        desc="Tokenizing",
    )


def tokenize_stream(rows: IterableDataset, function: Callable) -> IterableDataset:
    """Numbers the rows of each shard by themselves, 0, 2, 4, ... and 1, 3, 5, ... of two, since ranks and workers, who
    share the shards out among themselves, each count from 0."""
    num_shards = rows.num_shards
    if num_shards == 1:
        return rows.map(function, with_indices=True)
    return concatenate_datasets(
        [
            rows.shard(num_shards, shard).map(partial(numbered, function, num_shards, shard), with_indices=True)
            for shard in range(num_shards)
        ]
    )


def numbered(function: Callable, num_shards: int, shard: int, row: dict, place: int) -> dict:
    return function(row, place * num_shards + shard)


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """All that decides which tokens a row becomes, but the row and the options: the tokenizer, and the code."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # The state that the last call left behind decides nothing.
    backend = {name: value for name, value in backend.items() if name not in ("truncation", "padding")}
    special_tokens = (tokenizer.special_tokens_map, tokenizer.mask_token_id, tokenizer.eos_token_id)
    versions = [version(name) for name in ("transformers", "tokenizers")]
    code = [inspect.getsource(module) for module in map(sys.modules.get, CODE)]
    return Hasher.hash((json.dumps(backend), tokenizer.chat_template, special_tokens, versions, code))


def tokenize_row(row: dict, index: int, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> dict:
    fields, where, index = fields_of(row, index)
    tokens = tokens_of(fields, where, tokenizer, options)
    input_ids, has_loss = tokens.input_ids, tokens.has_loss
    outcome = WHOLE
    if not input_ids:
        outcome = BLANK
    elif tokenizer.mask_token_id in input_ids:
        outcome = HAS_MASK
    elif len(input_ids) > options.max_length:
        outcome = TRUNCATED if options.overlong == "truncate" else TOO_LONG
        input_ids, has_loss = input_ids[: options.max_length], has_loss[: options.max_length]
        if not any(has_loss) and outcome == TRUNCATED:
            outcome = NOTHING_LEFT
    if outcome not in (WHOLE, TRUNCATED):
        input_ids, has_loss = [], []
    input_ids, has_loss = up_to_last_loss(input_ids, has_loss)
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
    messages: list, first_message: int, tools: object, where: str, tokenizer: PreTrainedTokenizerBase, options
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
