"""A cache in which every row of the batch has a length of its own, and attention over it where keys and values lie."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer
from transformers.integrations.flash_attention import get_target_dtype
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention
from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward

from wedlm.generation.transformers_internals import CACHE, attention_of, check_is_filled

MOST_QUERIES = 64  # With at most so many, query heads that share keys become further queries (`score_bias`).


class CurrentForward(NamedTuple):
    """What a RowCache has to know of the forward pass at hand: where it writes, and how much it reads."""

    entries: Tensor  # [batch, 1, queries, 1]: the entry that each query writes
    valid_length: int  # the number of leading entries that the forward reads
    row_lengths: Tensor | None  # [batch]: what each row's last query sees, for attention that takes no mask
    num_needed: Tensor | None  # [batch, 1]: the number of leading queries that anything reads; None: all


class RowLayer(DynamicLayer):
    """Keys and values, `[batch, heads, capacity, head_dim]`, in memory allocated ahead and written by scatter."""

    is_compileable = True  # within its capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = key_states[:, :, :0].clone(), value_states[:, :, :0].clone()

    def write(
        self, key_states: Tensor, value_states: Tensor, current: CurrentForward, capacity: int
    ) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of a forward pass; returns the entries that it reads.

        The memory grows to `capacity` entries if it has too few.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(current.valid_length, capacity)
        entries = current.entries.to(self.device)
        self.keys = put(self.keys, entries, key_states)
        self.values = put(self.values, entries, value_states)
        return self.keys[:, :, : current.valid_length], self.values[:, :, : current.valid_length]

    def reserve(self, num_entries: int, capacity: int) -> None:
        """Lets the memory grow to `capacity` entries if it has less than `num_entries`."""
        if num_entries > self.keys.shape[2]:
            self.keys, self.values = grown(self.keys, capacity), grown(self.values, capacity)


def put(states: Tensor, entries: Tensor, new: Tensor) -> Tensor:
    if states.dtype != new.dtype:  # a cache passed in may have another dtype, and autocast changes keys alone
        dtype = torch.promote_types(states.dtype, new.dtype)
        states, new = states.to(dtype), new.to(dtype)
    return states.scatter_(2, entries.expand_as(new), new)


def grown(states: Tensor, capacity: int) -> Tensor:
    # Zeros, since attention multiplies masked entries by zero: NaNs in fresh memory would survive that.
    new = states.new_zeros((*states.shape[:2], capacity, states.shape[3]))
    new[:, :, : states.shape[2]] = states
    return new


def gathered(states: Tensor, entries: Tensor) -> Tensor:
    """`states[b, :, entries[b, i]]` for every i: `[batch, heads, i, head_dim]`."""
    entries = entries.to(states.device)[:, None, :, None]
    return states.gather(2, entries.expand(-1, states.shape[1], -1, states.shape[3]))


class RowCache(DynamicCache):
    """A cache with a length for each row. Entry i of a row holds the key and value of the row's token i.

    A forward writes its queries behind each row's length. Committing the first n of them moves the length by n; the
    next forward overwrites the others. A forward copies nothing unless the memory has to grow.

    An ordinary cache has columns instead, which all rows share and some of which hold padding. `of_columns` and
    `to_columns` go from one to the other.

    Args:
        batch_size (`int`): The number of rows.
        max_entries (`int`): The most entries that any forward will read.
        device (`torch.device`): The device of the lengths.
        keep_all (`bool`, *optional*, defaults to `False`): Whether `to_columns` will be called, which also needs the
            rows that `select` leaves out.
        is_static (`bool`, *optional*, defaults to `False`): Whether to take the memory for all entries at once.
    """

    def __init__(
        self, batch_size: int, max_entries: int, device: torch.device, keep_all: bool = False, is_static: bool = False
    ):
        super().__init__()
        self.max_entries, self.keep_all, self.is_static = max_entries, keep_all, is_static
        self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)  # committed entries of each row
        self.batch_rows = torch.arange(batch_size, device=device)  # the rows' indices in the batch of the call
        # batch_rows and each layer's keys and values, as they were before every select
        self.left_out: list[tuple] = []
        self.current: CurrentForward | None = None  # during a forward

    @classmethod
    def of_columns(cls, cache: DynamicCache, is_text: Tensor, max_entries: int, keep_all: bool = False) -> "RowCache":
        """Copies the columns of `cache` that hold text, `is_text` `[batch, columns]`, and leaves `cache` as it is."""
        if is_text.shape[1] > 0 and len(cache.layers[0].keys) != len(is_text):
            raise ValueError(
                f"{CACHE} holds {len(cache.layers[0].keys)} rows and the batch has {len(is_text)} (input_ids "
                f"times num_return_sequences); pass as many, {CACHE}.batch_repeat_interleave(n) makes them."
            )
        row_cache = cls(len(is_text), max_entries, is_text.device, keep_all)
        row_cache.lengths = is_text.sum(-1)
        columns = (~is_text).int().argsort(dim=-1, stable=True)  # those with text first, in order
        columns = columns[:, : int(row_cache.lengths.max())]
        for layer_idx, layer in enumerate(cache.layers if is_text.shape[1] > 0 else ()):
            keys, values = gathered(layer.keys, columns), gathered(layer.values, columns)
            row_cache.layers.append(RowLayer())
            row_cache.layers[layer_idx].lazy_initialization(keys, values)
            row_cache.layers[layer_idx].keys, row_cache.layers[layer_idx].values = keys, values
        return row_cache

    def to_columns(self, is_text: Tensor) -> DynamicCache:
        """An ordinary cache of the whole batch, with an entry in each column that holds text and zeros elsewhere."""
        entries = (is_text.cumsum(-1) - 1).clamp(min=0)  # [batch, columns]
        parts = [*self.left_out, (self.batch_rows, [(layer.keys, layer.values) for layer in self.layers])]
        cache = DynamicCache()
        for layer_idx in range(len(self.layers)):
            columns = []
            for kind in (0, 1):
                like = parts[0][1][layer_idx][kind]
                states = like.new_zeros((len(is_text), like.shape[1], is_text.shape[1], like.shape[3]))
                for batch_rows, layers in parts:  # the last part that has a row has it as it is now
                    part = layers[layer_idx][kind]
                    there = gathered(part, entries[batch_rows].clamp(max=part.shape[2] - 1))
                    holds_text = is_text[batch_rows][:, None, :, None].to(part.device)
                    states[batch_rows.to(part.device)] = torch.where(holds_text, there, 0)
                columns.append(states)
            cache.update(*columns, layer_idx)
        return cache

    def begin_forward(
        self,
        num_queries: int,
        valid_length: int,
        visible_prefix: Tensor | None = None,
        knows_lengths: bool = False,
        num_needed: Tensor | None = None,
    ) -> Tensor | None:
        """Begins a forward pass behind each row's length; returns which entries each query sees.

        Fused layers may leave out the queries behind the first `num_needed` of a row, which nothing reads. With
        `knows_lengths`, attention reads `current.row_lengths` instead of a mask where queries see all before them.

        Returns:
            `torch.BoolTensor` of shape `(batch, 1, queries, valid_length)`, or None where attention needs no mask.
        """
        last = self.lengths[:, None] + torch.arange(num_queries, device=self.lengths.device)
        is_plain = visible_prefix is None
        row_lengths = None
        if is_plain and knows_lengths:
            # (A row of a running batch that waits for the rest of its prompt may be longer than what is read.)
            row_lengths = (self.lengths + num_queries).clamp(max=valid_length).int()
        self.current = CurrentForward(last[:, None, :, None], valid_length, row_lengths, num_needed)
        if is_plain and (knows_lengths or valid_length == num_queries):  # (or there are no entries but the queries)
            return None
        return seen_entries(last, visible_prefix, valid_length)

    # A stock model that makes its own causal mask asks these. They say what is read; the memory may be larger.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.current is None else self.current.valid_length - self.current.entries.shape[2]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        self.make_layers(layer_idx + 1)
        return self.layers[layer_idx].write(key_states, value_states, self.current, self.capacity)

    def make_layers(self, number: int) -> None:
        while len(self.layers) < number:
            self.layers.append(RowLayer())

    @property
    def capacity(self) -> int:
        """The entries to which the memory grows where the forward at hand needs more than it has."""
        return self.max_entries if self.is_static else min(2 * self.current.valid_length, self.max_entries)

    def attention(self, module, query, keys, values, bias, scaling, dropout=0.0, **kwargs):
        """Attends to what `update` has returned, as an attention function of transformers does."""
        if attention_of(module.config) == "eager":
            options = {"scaling": scaling, "dropout": dropout}
            return eager_attention_forward(module, query, keys, values, bias, **options, **kwargs)
        if self.current.row_lengths is not None:
            attended = attend_up_to(self.current.row_lengths, query, keys, values, module)
        else:
            attended = attend(query, keys, values, bias, scaling, dropout)
        return attended.transpose(1, 2), None

    def commit(self, num_kept: Tensor) -> None:
        """Ends the forward pass: its first `num_kept` `[batch]` queries stay."""
        if self.current is not None:  # (A graph may have taken it.)
            check_is_filled(len(self.layers) > 0 and self.layers[0].keys.shape[2] >= self.current.valid_length)
        self.lengths.add_(num_kept)
        self.current = None

    def select(self, rows: Tensor) -> None:
        """Goes on with these rows alone."""
        if self.keep_all:
            self.left_out.append((self.batch_rows, [(layer.keys, layer.values) for layer in self.layers]))
        self.lengths, self.batch_rows = self.lengths[rows], self.batch_rows[rows]
        for layer in self.layers:
            chosen = rows.to(layer.device)
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]


# --- Attention ---


def seen_entries(last: Tensor, visible_prefix: Tensor | None, valid_length: int) -> Tensor:
    """Says which of the first `valid_length` entries each query sees, `[batch, 1, queries, entries]`.

    `last` is the entry of each query, the last one that it may see; for `visible_prefix` see `Queries`.
    """
    entries = torch.arange(valid_length, device=last.device)
    is_seen = entries <= last[..., None]
    if visible_prefix is not None:
        query = entries - last[:, :1]  # [batch, entries]: the query of each, negative before this forward
        prefix_of_entry = visible_prefix.gather(1, query.clamp(0, visible_prefix.shape[1] - 1))[:, None]
        is_seen &= (prefix_of_entry == visible_prefix[..., None]) | (query[:, None] < visible_prefix[..., None])
    return is_seen[:, None]


def score_bias(is_seen: Tensor | None, num_queries: int, config: PreTrainedConfig, like: Tensor) -> Tensor | None:
    """Turns what queries see into what `attend` takes: a bias that is added to the scores.

    The query heads that share a head of keys become further queries, so the bias is repeated for each. A prompt has
    too many queries for that, its mask would be the larger tensor: the mask stays as it is.

    Args:
        is_seen (`torch.BoolTensor` of shape `(batch, 1, queries, entries)`, *optional*): None stands for plain
            causality among the queries.
        num_queries (`int`): The number of queries.
        config (`PreTrainedConfig`): The model's config.
        like (`torch.Tensor`): A tensor with the dtype and device of the scores.
    """
    is_eager = attention_of(config) == "eager"
    if is_seen is None:
        if not is_eager:
            return None
        is_seen = torch.ones(1, 1, num_queries, num_queries, dtype=torch.bool, device=like.device).tril()
    if num_queries > MOST_QUERIES and not is_eager:
        return is_seen
    bias = torch.where(is_seen, like.new_zeros(()), torch.finfo(like.dtype).min)
    return bias if is_eager else bias.repeat(1, 1, config.num_attention_heads // config.num_key_value_heads, 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float, dropout: float) -> Tensor:
    """Attends to the entries of a cache by sdpa.

    With a mask, sdpa has no fast kernel for query heads that share keys. So these heads become further queries of one
    head, instead of copies of its keys.

    Args:
        query (`torch.Tensor` of shape `(batch, heads, queries, head_dim)`): The queries.
        keys, values (`torch.Tensor` of shape `(batch, key_value_heads, entries, head_dim)`): The entries.
        bias (`torch.Tensor`, *optional*): As `score_bias` makes it. None: the queries are the only entries, and
            causal.
    """
    if bias is None:
        return scaled_dot_product_attention(
            query, keys, values, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=True
        )
    batch, heads, num_queries, width = query.shape
    if bias.dtype == torch.bool:
        keys, values = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (keys, values))
    else:
        query, bias = query.reshape(batch, keys.shape[1], -1, width), bias.to(query.dtype)
    attended = scaled_dot_product_attention(query, keys, values, attn_mask=bias, dropout_p=dropout, scale=scaling)
    return attended.reshape(batch, heads, num_queries, width)


def attend_up_to(row_lengths: Tensor, query: Tensor, keys: Tensor, values: Tensor, module: nn.Module) -> Tensor:
    """Attends by flash-attn: the last query of row b sees the first `row_lengths[b]` entries; no other is read."""
    attention = flash_function(module.config)
    dtype = get_target_dtype(query, module) or query.dtype  # flash-attn takes no float32, as PEFT and norms may make
    query, keys, values = (states.transpose(1, 2).to(dtype) for states in (query, keys, values))
    attended = attention(
        query, keys, values, cache_seqlens=row_lengths.to(query.device), softmax_scale=module.scaling, causal=True
    )
    return attended.transpose(1, 2)


def flash_function(config: PreTrainedConfig) -> Callable | None:
    """flash-attn's function for caches, from the version or kernel that the model is set to; None if it has none."""
    return lazy_import_flash_attention(attention_of(config))[0][2]
