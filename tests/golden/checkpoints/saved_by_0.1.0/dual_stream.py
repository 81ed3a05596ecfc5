"""Attention of dual-stream training: who sees whom is `sees`, and every form of attention follows from it.

A row belongs to a sample, a stream (the clean memory or the masked prediction) and a block of its sample. The forms,
by `attn_implementation`: a dense mask for "sdpa" and "eager", a BlockMask for "flex_attention", and for "dual_stream"
what suits the device: the BlockMask on a GPU, elsewhere a decomposition into attention calls over parts of the rows,
which keeps nothing of quadratic size.
"""

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
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

MEMORY, PREDICTION = 0, 1  # stream_ids
PADDING = -1  # in sample_ids
BLOCKS_PER_GROUP = 4  # with blocks of 32: large enough a matrix product, and few masked scores computed in vain


class Rows(NamedTuple):
    """What decides who sees whom, one entry a row."""

    sample: torch.Tensor
    stream: torch.Tensor
    block: torch.Tensor
    index: torch.Tensor  # the physical order

    def at(self, *index) -> "Rows":
        return Rows(*(field[index] for field in self))


def sees(query: Rows, key: Rows) -> torch.Tensor:
    """Whether a query row sees a key row, in the shape that the two broadcast to.

    A memory row sees the memory up to itself. A prediction row sees the memory of earlier blocks, and of the
    prediction its own block up to itself. Nobody sees another sample; padding is a sample of its own, all memory.
    """
    is_memory = query.stream == MEMORY
    of_same_stream = (key.stream == query.stream) & (is_memory | (key.block == query.block))
    of_earlier_blocks = ~is_memory & (key.stream == MEMORY) & (key.block < query.block)
    # Nothing is changed in place, which a FlexAttention kernel cannot do.
    return (key.sample == query.sample) & ((of_same_stream & (key.index <= query.index)) | of_earlier_blocks)


def dense_mask(rows: Rows) -> torch.Tensor:
    """`[batch, 1, rows, rows]`, True where the row sees the column."""
    return sees(rows.at(..., None), rows.at(slice(None), None))[:, None]


def block_mask(rows: Rows) -> BlockMask:
    def mask_mod(batch, head, query, key):
        return sees(rows.at(batch, query), rows.at(batch, key))

    batch, length = rows.sample.shape
    # Compiled, no mask of [rows, rows] comes into being; on a CPU, where this form is for tests only, it does.
    create = create_block_mask if rows.sample.device.type == "cpu" else torch.compile(create_block_mask)
    return create(mask_mod, batch, None, length, length, device=rows.sample.device)


# --- The decomposed form ---


class Group(NamedTuple):
    """Neighbouring blocks of a prediction stream."""

    num_rows: int
    num_memory_rows: int  # those before its last block
    # [rows, keys], True where the row sees the key; keys are the last of those memory rows, from the group's first
    # block on, and then the group's own rows. Every row sees all memory rows before these.
    mask: torch.Tensor


# How the backward makes a group's part again: all but the output of attention on a CPU, which is of linear size.
KEPT = [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
MADE_AGAIN = {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, KEPT)}


class Sample(NamedTuple):
    num_memory_rows: int
    num_prediction_rows: int
    groups: list[Group]


class DecomposedAttention:
    """The attention of every sample in parts: its memory stream, causal, and its prediction stream group by group.

    The parts are found once, and all layers share them. Rows of padding, which no other row sees, come out as zeros.
    """

    def __init__(self, rows: Rows):
        self.batch = [samples_of(rows.at(i)) for i in range(len(rows.sample))]

    def __call__(self, attention: Callable, query, key, value) -> torch.Tensor:
        """`query`, `key`, `value`: `[batch, heads, rows, head_dim]`; returns `[batch, rows, heads, head_dim]`.

        `attention(query, key, value, mask)` does so for a part; without a mask it is causal.
        """
        outputs = []
        for samples, *tensors in zip(self.batch, *(x.split(1) for x in (query, key, value)), strict=True):
            lengths = [length for sample in samples for length in sample[:2]]
            num_padding_rows = query.shape[2] - sum(lengths)
            *streams, padding = zip(*(x.split([*lengths, num_padding_rows], dim=2) for x in tensors), strict=True)
            parts = []
            for sample, memory, prediction in zip(samples, streams[::2], streams[1::2], strict=True):
                parts.append(attention(*memory, None))
                parts += attend_groups(attention, sample, memory, prediction)
            padding_query, _, padding_value = padding
            parts.append(torch.zeros_like(padding_query, dtype=padding_value.dtype).transpose(1, 2))
            outputs.append(torch.cat(parts, dim=1))
        return torch.cat(outputs)


def attend_groups(attention: Callable, sample: Sample, memory: tuple, prediction: tuple) -> list[torch.Tensor]:
    bounds = [0, *(group.num_memory_rows for group in sample.groups), sample.num_memory_rows]
    pieces = [stop - start for start, stop in pairwise(bounds)]  # a group's memory is the pieces up to its own
    memory_keys, memory_values = (x.split(pieces, dim=2) for x in memory[1:])
    queries, keys, values = (x.split([group.num_rows for group in sample.groups], dim=2) for x in prediction)
    outputs = []
    for i, group in enumerate(sample.groups):
        group_keys, group_values = [*memory_keys[: i + 1], keys[i]], [*memory_values[: i + 1], values[i]]
        # What the groups join together would add up to quadratic size, so the backward joins it again.
        parts = (queries[i], group_keys, group_values)
        outputs.append(checkpoint(attend_group, attention, group.mask, *parts, **MADE_AGAIN))
    return outputs


def attend_group(attention: Callable, mask: torch.Tensor, query, keys: list, values: list) -> torch.Tensor:
    key, value = torch.cat(keys, dim=2), torch.cat(values, dim=2)
    mask = nn.functional.pad(mask, (key.shape[2] - mask.shape[1], 0), value=True)  # [rows, keys]
    return attention(query, key, value, mask[None, None].to(query.device))


class Stream(NamedTuple):
    """A run of rows of one sample and one stream, as runs of one block."""

    sample: int
    stream: int
    blocks: list[int]
    lengths: list[int]


def samples_of(rows: Rows) -> list[Sample]:
    """The samples of one row of the batch; `rows` is `[rows]`."""
    ids, lengths = torch.stack(rows[:3], dim=1).unique_consecutive(dim=0, return_counts=True)
    runs = zip(*ids.T.tolist(), lengths.tolist(), strict=True)  # the one host sync
    streams = [
        Stream(*sample_and_stream, *zip(*((block, length) for *_, block, length in of_stream), strict=True))
        for sample_and_stream, of_stream in groupby(runs, key=itemgetter(0, 1))
    ]
    if (streams[-1].sample, streams[-1].stream) == (PADDING, MEMORY):
        streams.pop()
    check_order(streams)
    samples, start = [], 0
    for memory, prediction in zip(streams[::2], streams[1::2], strict=True):
        groups = groups_of(rows, start, memory, prediction)
        samples.append(Sample(sum(memory.lengths), sum(prediction.lengths), groups))
        start += sum(memory.lengths) + sum(prediction.lengths)
    return samples


def check_order(streams: list[Stream]) -> None:
    order = [(stream.sample, stream.stream) for stream in streams]
    samples = dict.fromkeys(stream.sample for stream in streams)
    is_ascending = all(before < after for stream in streams for before, after in pairwise(stream.blocks))
    if order != list(product(samples, (MEMORY, PREDICTION))) or PADDING in samples or not is_ascending:
        raise ValueError(
            "sample_ids, stream_ids and block_ids do not list the memory and then the prediction of one sample after "
            'another, blocks ascending, padding last, as attn_implementation="dual_stream" needs them; lay the rows '
            'out as DualStreamCollator does, or call model.set_attn_implementation("sdpa").'
        )


def groups_of(rows: Rows, start: int, memory: Stream, prediction: Stream) -> list[Group]:
    """The groups of a sample whose memory begins at row `start`."""
    memory_bounds = [0, *accumulate(memory.lengths)]
    groups, row = [], start + memory_bounds[-1]
    for i in range(0, len(prediction.blocks), BLOCKS_PER_GROUP):
        blocks = prediction.blocks[i : i + BLOCKS_PER_GROUP]
        num_rows = sum(prediction.lengths[i : i + BLOCKS_PER_GROUP])
        seen_by_all = memory_bounds[bisect_left(memory.blocks, blocks[0])]
        seen_by_some = memory_bounds[bisect_left(memory.blocks, blocks[-1])]
        queries, memories = slice(row, row + num_rows), slice(start + seen_by_all, start + seen_by_some)
        keys = Rows(*(torch.cat([field[memories], field[queries]]) for field in rows))
        groups.append(Group(num_rows, seen_by_some, sees(rows.at(queries).at(..., None), keys)))
        row += num_rows
    return groups


def dual_stream_attention(module: nn.Module, query, key, value, attention_mask, **kwargs) -> tuple[torch.Tensor, None]:
    """What attn_implementation="dual_stream" calls in each layer; without the two streams it is "sdpa"."""
    if isinstance(attention_mask, BlockMask):
        return flex_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is None or isinstance(attention_mask, torch.Tensor):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    def attention(query, key, value, mask):
        # Not sdpa_attention_forward: under a mask it copies the keys and values for each of the heads that share them.
        how = {"dropout_p": kwargs["dropout"], "scale": kwargs["scaling"], "enable_gqa": True}
        parts = (query, key, value, mask)
        return nn.functional.scaled_dot_product_attention(*parts, is_causal=mask is None, **how).transpose(1, 2)

    return attention_mask(attention, query, key, value), None


AttentionInterface.register("dual_stream", dual_stream_attention)
AttentionMaskInterface.register("dual_stream", sdpa_mask)

# --- What the model asks for ---


def what_suits_the_device(rows: Rows) -> BlockMask | DecomposedAttention:
    return block_mask(rows) if rows.sample.device.type == "cuda" else DecomposedAttention(rows)


FORMS = {
    "sdpa": dense_mask,
    "eager": dense_mask,
    "flex_attention": block_mask,
    "dual_stream": what_suits_the_device,
}


def dual_stream_mask(
    config: PreTrainedConfig, sample_ids: torch.Tensor, stream_ids: torch.Tensor, block_ids: torch.Tensor
) -> torch.Tensor | BlockMask | DecomposedAttention:
    """What the layers take for an attention mask; the ids are `[batch, rows]`."""
    if "sliding_attention" in config.layer_types:
        raise ValueError(
            f"layer_types={config.layer_types} holds sliding_attention, and the attention of the two streams knows no "
            "window; set use_sliding_window=False and layer_types to full_attention."
        )
    if config._attn_implementation not in FORMS:
        raise ValueError(
            f"attn_implementation={config._attn_implementation!r} cannot express the attention of the two streams; "
            'call model.set_attn_implementation("dual_stream").'
        )
    index = torch.arange(sample_ids.shape[1], device=sample_ids.device).expand_as(sample_ids)
    return FORMS[config._attn_implementation](Rows(sample_ids, stream_ids, block_ids, index))
