"""Prepares training data: reads records, tokenizes them into samples, cuts or drops and counts these, and packs them.

Words that all of training uses:

- A record is one example of the user's data: `messages`, `prompt` and `completion`, or `text`.
- A sample is a record as tokens with labels. A label is the token itself, not shifted, or -100 where there is no loss.
- A sequence is one sample or, with packing, several behind each other; it has at most `max_length` tokens.
- A row is a row of a batch. The collator makes one of each sequence. A row holds two streams of each sample: the
  memory stream is the clean text, and the prediction stream after it is the same text in blocks with masked tokens.
- A query is a position in a row. It belongs to one token of one stream.
- A streamed dataset is an `IterableDataset`, read while training. It has nothing to do with the two streams of a row.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from datasets import Dataset, Features, IterableDataset, List, Value, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from wedlm.training.collator import COLUMNS
from wedlm.training.data_files import NO_RECORDS, Paths, load_records
from wedlm.training.data_options import DataOptions
from wedlm.training.packing import pack, pack_batch
from wedlm.training.run_errors import TrainingError
from wedlm.training.tokenization import TRUNCATED, WHOLE, tokenize_record

COUNT_COLUMNS = ("outcome", "num_tokens", "num_loss_tokens", "num_rewritten", "num_without_end")
TOKENS = List(Value("int32"))
INDICES = List(Value("int64"))
SEQUENCE_FEATURES = Features(
    {"input_ids": TOKENS, "labels": TOKENS, "sample_lengths": INDICES, "sample_indices": INDICES}
)
FEATURES = Features(
    {**SEQUENCE_FEATURES, "outcome": Value("string"), **{name: Value("int64") for name in COUNT_COLUMNS[1:]}}
)
# The modules whose code decides the tokens of a record: a change of it tokenizes cached data anew.
CODE = (
    "wedlm.checkpoints.rendering",
    "wedlm.training.chat_template",
    "wedlm.training.data_files",
    "wedlm.training.tokenization",
)
PACKING_BUFFER = 512  # samples of a streamed dataset that are packed at a time


@dataclass
class DataSummary:
    """Counts records, samples and tokens; training_report.json holds its fields.

    For a streamed dataset it counts the records that this process has read so far, in all passes.
    """

    max_length: int
    num_read: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    num_loss_tokens: int = 0
    num_truncated: int = 0
    num_rewritten: int = 0  # assistant turns that the chat template writes differently when other turns follow
    num_without_end: int = 0  # conversations whose last answer ends without a special token
    dropped: dict[str, int] = field(default_factory=dict)  # by the reason
    num_packed_rows: int = 0  # packed sequences
    num_packed_tokens: int = 0

    def count(
        self, outcome: str, num_tokens: int, num_loss_tokens: int, num_rewritten: int, num_without_end: int
    ) -> None:
        """Counts a record, given the values of its COUNT_COLUMNS."""
        self.num_read += 1
        if outcome in (WHOLE, TRUNCATED):
            self.num_samples += 1
            self.num_tokens += num_tokens
            self.num_loss_tokens += num_loss_tokens
            self.num_truncated += outcome == TRUNCATED
            self.num_rewritten += num_rewritten
            self.num_without_end += num_without_end
        else:
            self.dropped[outcome] = self.dropped.get(outcome, 0) + 1

    def count_packed(self, lengths: Iterable[int]) -> None:
        """Counts a packed sequence, given the lengths of its samples."""
        self.num_packed_rows += 1
        self.num_packed_tokens += sum(lengths)

    def __str__(self) -> str:
        lines = [
            f"{self.num_read:,} records read, {self.num_samples:,} samples: "
            f"{self.num_tokens:,} tokens, {self.num_loss_tokens:,} of them with loss."
        ]
        if self.num_truncated:
            lines.append(f"Truncated to max_length={self.max_length}: {self.num_truncated:,} samples.")
        lines += [f"Dropped: {count:,} ({reason})." for reason, count in sorted(self.dropped.items())]
        if self.num_rewritten:
            lines.append(
                "Earlier assistant turns that the chat template changes, by dropping their thinking for example: "
                f"{self.num_rewritten:,}; loss_on='last' leaves them without loss."
            )
        if self.num_without_end:
            lines.append(
                f"Conversations whose last answer has no end token in the chat template: {self.num_without_end:,}; "
                "a model learns no end from them without extra_end_tokens=1."
            )
        if self.num_packed_rows:
            share = self.num_packed_tokens / (self.num_packed_rows * self.max_length)
            lines.append(f"Packed into {self.num_packed_rows:,} sequences, {share:.1%} full.")
        return "\n".join(lines)


def prepare_dataset(
    data: Dataset | IterableDataset | Paths, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[Dataset | IterableDataset, DataSummary]:
    """Turns records into sequences that the collator takes.

    A sample ends with its last token that has loss. A newline of the template after it would tell the masked tokens
    before it where the text ends, and nothing else.

        input_ids       [5, 6, 7, 2]
        labels          [-100, 6, 7, 2]    the token itself, not shifted; -100 has no loss
        sample_lengths  [4]                the lengths of the samples of the sequence, in their order
        sample_indices  [17]               the numbers of their records in `data`

    Each record has `messages` (and perhaps `tools`), or `prompt` and `completion` (both texts or both lists of
    messages), or `text`. The tokenizer is a fast one, with a mask token and an end token.
    """
    check_tokenizer(tokenizer)
    records = data if isinstance(data, Dataset | IterableDataset) else load_records(data, options.streaming)
    if isinstance(records, IterableDataset):
        return prepare_streamed(records, tokenizer, options)
    if not len(records):
        raise TrainingError(NO_RECORDS)
    summary = DataSummary(options.max_length)
    samples = records.with_format(None).map(
        partial(tokenize_record, tokenizer=tokenizer, options=options),
        with_indices=True,
        remove_columns=records.column_names,
        features=FEATURES,
        num_proc=options.num_proc,
        new_fingerprint=Hasher.hash((records._fingerprint, tokenizer_key(tokenizer), dataclasses.asdict(options))),
        desc="Tokenizing",
    )
    counts = list(zip(*(samples[name][:] for name in COUNT_COLUMNS), strict=True))
    for counted in counts:
        summary.count(*counted)
    check_not_empty(summary)
    samples = samples.remove_columns(COUNT_COLUMNS)
    if summary.dropped:
        samples = samples.select([i for i, (outcome, *_) in enumerate(counts) if outcome in (WHOLE, TRUNCATED)])
    if options.packing:
        samples = pack(samples, options.max_length)
        for lengths in samples["sample_lengths"]:
            summary.count_packed(lengths)
    return samples, summary


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hashes the tokenizer and the code, which with a record and the options decide the tokens of a sample."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # These two hold the state of the last call.
    backend = {name: value for name, value in backend.items() if name not in ("truncation", "padding")}
    special_tokens = (tokenizer.special_tokens_map, tokenizer.mask_token_id, tokenizer.eos_token_id)
    versions = [version(name) for name in ("transformers", "tokenizers")]
    code = [inspect.getsource(module) for module in map(sys.modules.get, CODE)]
    return Hasher.hash((json.dumps(backend), tokenizer.chat_template, special_tokens, versions, code))


# --- Streamed datasets ---


def prepare_streamed(
    records: IterableDataset, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[IterableDataset, DataSummary]:
    tokenized = tokenize_streamed(records, partial(tokenize_record, tokenizer=tokenizer, options=options))
    first, summary = DataSummary(options.max_length), DataSummary(options.max_length)
    if next(iter(kept_samples(tokenized, first)), None) is None:
        check_not_empty(first)
    samples = kept_samples(tokenized, summary)
    if options.packing:
        packing = partial(pack_and_count, max_length=options.max_length, summary=summary)
        samples = samples.map(packing, batched=True, batch_size=PACKING_BUFFER, features=SEQUENCE_FEATURES)
    return samples, summary


def kept_samples(samples: IterableDataset, summary: DataSummary) -> IterableDataset:
    """Counts the samples, and leaves out those that are dropped."""
    samples = samples.filter(partial(count_and_keep, summary=summary))
    return samples.select_columns(list(COLUMNS)).cast(SEQUENCE_FEATURES)


def count_and_keep(sample: dict, summary: DataSummary) -> bool:
    summary.count(*(sample[name] for name in COUNT_COLUMNS))
    return sample["outcome"] in (WHOLE, TRUNCATED)


def pack_and_count(samples: dict[str, list], max_length: int, summary: DataSummary) -> dict[str, list]:
    packed = pack_batch(samples, max_length)
    for lengths in packed["sample_lengths"]:
        summary.count_packed(lengths)
    return packed


def tokenize_streamed(records: IterableDataset, function: Callable) -> IterableDataset:
    """Numbers the records of each shard apart: two shards count 0, 2, 4, ... and 1, 3, 5, ...

    Ranks and workers divide the shards among themselves and each count from 0, so a common count is impossible.
    """
    num_shards = records.num_shards
    if num_shards == 1:
        return records.map(function, with_indices=True)
    return concatenate_datasets(
        [
            records.shard(num_shards, shard).map(partial(numbered, function, num_shards, shard), with_indices=True)
            for shard in range(num_shards)
        ]
    )


def numbered(function: Callable, num_shards: int, shard: int, record: dict, index: int) -> dict:
    return function(record, index * num_shards + shard)


# --- Checks ---


def check_not_empty(summary: DataSummary) -> None:
    if not summary.num_read:
        raise TrainingError(NO_RECORDS)
    if not summary.num_samples:
        reasons = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(summary.dropped.items()))
        raise TrainingError(
            f"No sample is left of {summary.num_read:,} records (dropped: {reasons}); "
            f"change the data, max_length={summary.max_length} or overlong."
        )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.eos_token_id is None:
        raise TrainingError("The tokenizer has no end token; set tokenizer.eos_token.")
    if not tokenizer.is_fast:
        raise TrainingError(
            f"{type(tokenizer).__name__} does not tell which characters a token stands for; use a fast tokenizer."
        )
