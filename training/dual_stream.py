"""The attention of dual-stream training: the rule which query sees which key, and masks and calls that follow it."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate, groupby, pairwise, product
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
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
    """Neighbouring queries of a row, whose attention is one call: a memory stream, or some blocks of a prediction."""

    queries: slice
    keys: list[slice]
    # [queries, keys], 0 where the query sees the key and -inf where not, for the last of the keys; all queries see the
    # keys before these. None: the mask is causal.
    bias: torch.Tensor | None

    def bias_of_all(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns `[queries, keys]` with all keys. The kernel takes numbers of another dtype for its own, unseen."""
        if self.bias is None:
            return None
        num_keys = sum(part.stop - part.start for part in self.keys)
        return nn.functional.pad(self.bias.to(dtype), (num_keys - self.bias.shape[1], 0))


class DecomposedAttention:
    """The attention of both streams as one causal call for the memory of each sample, and one call for each group.

    No tensor is quadratic in the length of the text. All layers share the object, which finds the groups once. Samples
    follow each other in a row, each with its memory before its prediction, blocks ascending, and padding last.
    """

    def __init__(self, queries: StreamQueries):
        self.rows = [find_groups(queries.at(row)) for row in range(len(queries.sample))]

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns `[batch, queries, heads, head_dim]` for tensors `[batch, heads, queries, head_dim]`.

        Several query heads may share a head of keys and values. The output is zero at padding, which no other query
        sees.
        """
        if torch.is_autocast_enabled(query.device.type):  # which does not know the operators of the groups
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (each.to(dtype) for each in (query, key, value))
        return AttentionOfGroups.apply(query, key, value, scale, self.rows)


class AttentionOfGroups(torch.autograd.Function):
    """The attention of all groups, by torch's kernel for CPUs. It keeps nothing but its inputs and its output.

    As a function of its own it concatenates the keys of a group, whose size is quadratic together, for one call at a
    time, and adds the gradients of its parts up in one place.
    """

    @staticmethod
    def forward(ctx, query, key, value, scale, rows):
        output = torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        # The logarithms of the sums of the exponentials of scores.
        sums = torch.zeros_like(
            output[..., 0], dtype=torch.float64 if output.dtype == torch.float64 else torch.float32
        )
        for row, group in groups_of(rows):
            queries, keys = query[row, :, group.queries], keys_of(group, key[row], value[row])
            output[row, :, group.queries], sums[row, :, group.queries] = KERNEL(
                queries, *keys, 0.0, group.bias is None, attn_mask=group.bias_of_all(queries.dtype), scale=scale
            )
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.scale, ctx.rows = scale, rows
        return output.transpose(1, 2)

    @staticmethod
    def backward(ctx, of_output):
        # In float32 the kernel takes half the time that it takes in bfloat16, and rounds less.
        dtype = torch.promote_types(of_output.dtype, torch.float32)
        *tensors, sums = ctx.saved_tensors
        query, key, value, output, of_output = (each.to(dtype) for each in (*tensors, of_output.transpose(1, 2)))
        gradients = [torch.zeros_like(each) for each in (query, key, value)]
        for row, group in groups_of(ctx.rows):
            queries, keys = query[row, :, group.queries], keys_of(group, key[row], value[row])
            of_queries, *of_keys = BACKWARD_OF_KERNEL(
                of_output[row, :, group.queries],
                queries,
                *keys,
                output[row, :, group.queries],
                sums[row, :, group.queries],
                0.0,
                group.bias is None,
                attn_mask=group.bias_of_all(queries.dtype),
                scale=ctx.scale,
            )
            gradients[0][row, :, group.queries] = of_queries
            lengths = [part.stop - part.start for part in group.keys]
            for gradient, of_group in zip(gradients[1:], of_keys, strict=True):
                for part, of_part in zip(group.keys, of_group.split(lengths, dim=2), strict=True):
                    gradient[row, :, part] += of_part
        return *(each.to(tensor.dtype) for each, tensor in zip(gradients, tensors, strict=False)), None, None


KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD_OF_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def groups_of(rows: list[list[Group]]) -> Iterator[tuple[slice, Group]]:
    """Yields each group with its row of the batch."""
    for row, groups in enumerate(rows):
        for group in groups:
            yield slice(row, row + 1), group


def keys_of(group: Group, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns those of the keys and of the values that the group sees."""
    parts = [[tensor[:, :, part] for part in group.keys] for tensor in tensors]
    return [torch.cat(each, dim=2) if len(each) > 1 else each[0] for each in parts]


class Stream(NamedTuple):
    """One stream of one sample: the numbers of its blocks, and the length of each."""

    sample: int
    stream: int
    blocks: list[int]
    lengths: list[int]


def find_groups(queries: StreamQueries) -> list[Group]:
    """Returns the groups of one row of the batch; the numbers of its queries are `[queries]`."""
    ids, lengths = torch.stack(queries[:3], dim=1).unique_consecutive(dim=0, return_counts=True)
    runs = zip(*ids.T.tolist(), lengths.tolist(), strict=True)
    streams = [
        Stream(*sample_and_stream, *zip(*((block, length) for *_, block, length in runs_of_stream), strict=True))
        for sample_and_stream, runs_of_stream in groupby(runs, key=itemgetter(0, 1))
    ]
    if (streams[-1].sample, streams[-1].stream) == (PADDING, MEMORY):
        streams.pop()
    check_order(streams)
    groups, start = [], 0
    for stream in streams:
        own = slice(start, start + sum(stream.lengths))
        if stream.stream == MEMORY:
            memory, memory_start = stream, start
            groups.append(Group(own, [own], None))
        else:
            groups += groups_of_prediction(queries, memory_start, memory, start, stream)
        start = own.stop
    return groups


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


def groups_of_prediction(
    queries: StreamQueries, memory_start: int, memory: Stream, start: int, prediction: Stream
) -> list[Group]:
    """Returns the groups of the prediction stream that begins at the index `start`."""
    memory_bounds, first_queries = ([0, *accumulate(stream.lengths)] for stream in (memory, prediction))
    groups = []
    for _, neighbours in groupby(range(len(prediction.blocks)), key=lambda i: first_queries[i] // QUERIES_PER_GROUP):
        first, *others = neighbours
        last = others[-1] if others else first
        seen_by_all, seen_by_some = (
            memory_start + memory_bounds[bisect_left(memory.blocks, prediction.blocks[block])]
            for block in (first, last)
        )
        own, masked_memory = (
            slice(start + first_queries[first], start + first_queries[last + 1]),
            slice(seen_by_all, seen_by_some),
        )
        keys = StreamQueries(*(torch.cat([numbers[masked_memory], numbers[own]]) for numbers in queries))
        is_seen = sees(queries.at(own).at(..., None), keys)
        bias = torch.zeros_like(is_seen, dtype=torch.float32).masked_fill_(~is_seen, -torch.inf)
        groups.append(Group(own, [slice(memory_start, seen_by_some), own], bias))
    return groups


# --- The mask of a model ---


Mask = torch.Tensor | BlockMask | DecomposedAttention
MASKS_OF_DEVICES: dict[str, Callable[[StreamQueries], Mask]] = {"cuda": block_mask, "cpu": DecomposedAttention}
MASKS: dict[str, Callable[[StreamQueries], Mask]] = {  # by attn_implementation
    "sdpa": dense_mask,
    "eager": dense_mask,
    "flex_attention": block_mask,
    "dual_stream": lambda queries: MASKS_OF_DEVICES.get(queries.sample.device.type, dense_mask)(queries),
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
    queries = StreamQueries(sample_ids, stream_ids, block_ids, index)
    if config.attention_dropout and sample_ids.device.type == "cpu":  # torch's kernel for CPUs has no dropout
        return dense_mask(queries)
    return MASKS[attention_of(config)](queries)
