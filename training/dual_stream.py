"""The attention of dual-stream training: the rule which query sees which key, and masks and calls that follow it."""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate, groupby, pairwise, product
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedConfig

from wedlm.generation.transformers_internals import attention_of

MEMORY, PREDICTION = 0, 1  # the values of stream_ids
PADDING = -1  # in sample_ids


class StreamQueries(NamedTuple):
    """Four numbers of each query, all `[batch, queries]`; the key at the same position has the same numbers."""

    sample: torch.Tensor  # or PADDING
    stream: torch.Tensor  # MEMORY or PREDICTION
    block: torch.Tensor  # the number of the block in its sample
    place: torch.Tensor  # in the input, which is not the position that RoPE sees

    def at(self, *index) -> "StreamQueries":
        """Indexes all four tensors alike."""
        return StreamQueries(*(numbers[index] for numbers in self))


def sees(query: StreamQueries, key: StreamQueries) -> torch.Tensor:
    """Returns True where a query sees a key. Queries and keys broadcast against each other.

    A memory query sees the memory of its sample up to itself. A prediction query sees the memory of earlier blocks,
    and the prediction of its own block up to itself. Padding is a sample of its own, in which all is memory.
    """
    is_memory = query.stream == MEMORY
    of_same_stream = (key.stream == query.stream) & (is_memory | (key.block == query.block))
    of_earlier_blocks = ~is_memory & (key.stream == MEMORY) & (key.block < query.block)
    # No operation is in place, because a FlexAttention kernel allows none.
    return (key.sample == query.sample) & ((of_same_stream & (key.place <= query.place)) | of_earlier_blocks)


# --- The whole mask ---

MOST_PAIRS = 2**30  # of queries and keys in a mask that is made whole, in some gigabytes


def dense_mask(queries: StreamQueries) -> torch.Tensor:
    """Returns `[batch, 1, queries, keys]`, True where the query sees the key."""
    return sees(queries.at(..., None), queries.at(slice(None), None))[:, None]


def block_mask(queries: StreamQueries) -> BlockMask:
    """Returns the mask that FlexAttention takes."""

    def mask_mod(batch, head, query, key):
        return sees(queries.at(batch, query), queries.at(batch, key))

    batch, length = queries.sample.shape
    # Compiled, the function never holds a mask of [queries, keys], but each shape is compiled for minutes.
    create = create_block_mask if batch * length**2 <= MOST_PAIRS else torch.compile(create_block_mask)
    return create(mask_mod, batch, None, length, length, device=queries.sample.device)


# --- The same attention in parts ---

# Roughly. More would compute more scores only to mask them; fewer would make small matrix products.
QUERIES_PER_GROUP = 128


class Group(NamedTuple):
    """Neighbouring blocks of the prediction stream of a sample, whose attention is one call."""

    length: int  # of the group's queries
    memory_length: int  # of the memory before its last block
    # [queries, keys], True where the query sees the key. The keys are those of the memory from the group's first block
    # to before its last one, and then the group's own. All queries of the group see the memory before that.
    mask: torch.Tensor


class Sample(NamedTuple):
    memory_length: int
    prediction_length: int
    groups: list[Group]


# The backward recomputes all of a group's attention but the output of the kernel on a CPU, whose size is linear.
SAVED_OPERATIONS = [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
RECOMPUTATION = partial(create_selective_checkpoint_contexts, SAVED_OPERATIONS)


class DecomposedAttention:
    """The attention of both streams as one causal call for the memory of each sample, and one call for each group.

    No tensor is quadratic in the length of the text. All layers share the object, which finds the groups once. Samples
    follow each other in a row, each with its memory before its prediction, blocks ascending, and padding last.
    """

    def __init__(self, queries: StreamQueries):
        self.batch = [find_samples(queries.at(row)) for row in range(len(queries.sample))]

    def __call__(
        self, attention: Callable, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attends by several calls of `attention(query, key, value, mask)`, where a mask of None is the causal one.

        Tensors are `[batch, heads, queries, head_dim]`, and outputs are `[batch, queries, heads, head_dim]`. The
        output is zero at padding, which no other query sees.
        """
        outputs = []
        for samples, *tensors in zip(self.batch, *(x.split(1) for x in (query, key, value)), strict=True):
            lengths = [length for sample in samples for length in (sample.memory_length, sample.prediction_length)]
            padding_length = query.shape[2] - sum(lengths)
            *streams, padding = zip(*(x.split([*lengths, padding_length], dim=2) for x in tensors), strict=True)
            parts = []
            for sample, memory, prediction in zip(samples, streams[::2], streams[1::2], strict=True):
                parts.append(attention(*memory, None))
                parts += attend_groups(attention, sample, memory, prediction)
            padding_query, _, padding_value = padding
            parts.append(torch.zeros_like(padding_query, dtype=padding_value.dtype).transpose(1, 2))
            outputs.append(torch.cat(parts, dim=1))
        return torch.cat(outputs)


def attend_groups(attention: Callable, sample: Sample, memory: tuple, prediction: tuple) -> list[torch.Tensor]:
    """Attends group by group; `memory` and `prediction` are the query, key and value of the sample's two streams."""
    bounds = [0, *(group.memory_length for group in sample.groups), sample.memory_length]
    pieces = [stop - start for start, stop in pairwise(bounds)]  # a group sees all pieces up to its own
    memory_keys, memory_values = (x.split(pieces, dim=2) for x in memory[1:])
    queries, keys, values = (x.split([group.length for group in sample.groups], dim=2) for x in prediction)
    outputs = []
    for i, group in enumerate(sample.groups):
        group_keys, group_values = [*memory_keys[: i + 1], keys[i]], [*memory_values[: i + 1], values[i]]
        # The keys that the groups concatenate have quadratic size together; the backward concatenates them again.
        parts = (queries[i], group_keys, group_values)
        outputs.append(
            checkpoint(attend_group, attention, group.mask, *parts, use_reentrant=False, context_fn=RECOMPUTATION)
        )
    return outputs


def attend_group(
    attention: Callable, mask: torch.Tensor, query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> torch.Tensor:
    key, value = torch.cat(keys, dim=2), torch.cat(values, dim=2)
    mask = nn.functional.pad(mask, (key.shape[2] - mask.shape[1], 0), value=True)  # [queries, keys]
    return attention(query, key, value, mask[None, None].to(query.device))


class Stream(NamedTuple):
    """One stream of one sample: the numbers of its blocks, and the length of each."""

    sample: int
    stream: int
    blocks: list[int]
    lengths: list[int]


def find_samples(queries: StreamQueries) -> list[Sample]:
    """Returns the samples of one row of the batch; the numbers of its queries are `[queries]`."""
    ids, lengths = torch.stack(queries[:3], dim=1).unique_consecutive(dim=0, return_counts=True)
    runs = zip(*ids.T.tolist(), lengths.tolist(), strict=True)  # waits for the device, the only time
    streams = [
        Stream(*sample_and_stream, *zip(*((block, length) for *_, block, length in runs_of_stream), strict=True))
        for sample_and_stream, runs_of_stream in groupby(runs, key=itemgetter(0, 1))
    ]
    if (streams[-1].sample, streams[-1].stream) == (PADDING, MEMORY):
        streams.pop()
    check_order(streams)
    predictions = {stream.sample: stream for stream in streams if stream.stream == PREDICTION}
    samples, start = [], 0
    for memory in (stream for stream in streams if stream.stream == MEMORY):
        prediction = predictions.get(memory.sample, Stream(memory.sample, PREDICTION, [], []))  # without a MASK
        groups = find_groups(queries, start, memory, prediction)
        samples.append(Sample(sum(memory.lengths), sum(prediction.lengths), groups))
        start += sum(memory.lengths) + sum(prediction.lengths)
    return samples


def check_order(streams: list[Stream]) -> None:
    order = [(stream.sample, stream.stream) for stream in streams]
    samples = dict.fromkeys(stream.sample for stream in streams)
    wanted = [pair for pair in product(samples, (MEMORY, PREDICTION)) if pair[1] == MEMORY or pair in order]
    is_ascending = all(before < after for stream in streams for before, after in pairwise(stream.blocks))
    if order != wanted or PADDING in samples or not is_ascending:
        raise ValueError(
            "sample_ids, stream_ids and block_ids do not list the memory and then the prediction of one sample after "
            'another, blocks ascending and padding last, as attn_implementation="dual_stream" needs them; order them '
            'as DualStreamCollator does, or call model.set_attn_implementation("sdpa").'
        )


def find_groups(queries: StreamQueries, start: int, memory: Stream, prediction: Stream) -> list[Group]:
    """Returns the groups of the sample whose memory begins at the index `start`."""
    memory_bounds, first_queries = ([0, *accumulate(stream.lengths)] for stream in (memory, prediction))
    groups, group_start = [], start + memory_bounds[-1]
    for _, neighbours in groupby(range(len(prediction.blocks)), key=lambda i: first_queries[i] // QUERIES_PER_GROUP):
        first, *others = neighbours
        last = others[-1] if others else first
        length = first_queries[last + 1] - first_queries[first]
        seen_by_all = memory_bounds[bisect_left(memory.blocks, prediction.blocks[first])]
        seen_by_some = memory_bounds[bisect_left(memory.blocks, prediction.blocks[last])]
        own, masked_memory = slice(group_start, group_start + length), slice(start + seen_by_all, start + seen_by_some)
        keys = StreamQueries(*(torch.cat([numbers[masked_memory], numbers[own]]) for numbers in queries))
        groups.append(Group(length, seen_by_some, sees(queries.at(own).at(..., None), keys)))
        group_start += length
    return groups


# --- The mask of a model ---


Mask = torch.Tensor | BlockMask | DecomposedAttention
MASKS: dict[str, Callable[[StreamQueries], Mask]] = {  # by attn_implementation
    "sdpa": dense_mask,
    "eager": dense_mask,
    "flex_attention": block_mask,
    "dual_stream": lambda queries: block_mask(queries) if queries.sample.is_cuda else DecomposedAttention(queries),
}


def dual_stream_mask(
    config: PreTrainedConfig, sample_ids: torch.Tensor, stream_ids: torch.Tensor, block_ids: torch.Tensor
) -> Mask:
    """Builds the mask that the layers get when a forward contains both streams; ids are `[batch, queries]`."""
    if "sliding_attention" in config.layer_types:
        raise ValueError(
            f"layer_types={config.layer_types} contains sliding_attention, but the attention of the two streams has "
            "no sliding window; set use_sliding_window=False and layer_types to full_attention."
        )
    if attention_of(config) not in MASKS:
        raise ValueError(
            f"attn_implementation={attention_of(config)!r} cannot express the attention of the two streams; "
            'call model.set_attn_implementation("dual_stream").'
        )
    index = torch.arange(sample_ids.shape[1], device=sample_ids.device).expand_as(sample_ids)
    return MASKS[attention_of(config)](StreamQueries(sample_ids, stream_ids, block_ids, index))
