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

from datasets import Dataset, Features, IterableDataset, List, Value, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from wedlm.training.data_options import DataOptions
from wedlm.training.errors import TrainingError
from wedlm.training.packing import pack, pack_batch
from wedlm.training.rows import NO_ROWS, Paths, load_rows
from wedlm.training.samples import TRUNCATED, WHOLE, tokenize_row

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
CODE = ("wedlm.training.conversation", "wedlm.training.rows", "wedlm.training.samples")
STREAM_BUFFER = 512  # samples that a stream packs at a time


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
    """Every row as a sample of its own, dropped ones included: the result's columns, and those that are counted."""
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
