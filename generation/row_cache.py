import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from wedlm.generation.row_attention import seen_entries


class RowLayer(DynamicLayer):
    """Keys and values, `[batch, heads, capacity, head_dim]`, in memory allocated ahead and written by scatter."""

    is_compileable = True  # within its capacity

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_empty((*value_states.shape[:2], 0, value_states.shape[3]))
        self.is_initialized = True

    def write(
        self, key_states: torch.Tensor, value_states: torch.Tensor, cache: "RowCache"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts the rows at the entries that `cache` says, and returns its `live` ones."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if cache.live > self.keys.shape[2]:
            capacity = cache.most if cache.is_static else min(2 * cache.live, cache.most)
            self.keys, self.values = grown(self.keys, capacity), grown(self.values, capacity)
        entries = cache.entries.to(self.device).expand_as(key_states)
        self.keys = put(self.keys, entries, key_states)
        self.values = put(self.values, entries, value_states)
        return self.keys[:, :, : cache.live], self.values[:, :, : cache.live]


def put(states: torch.Tensor, entries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    if states.dtype != new.dtype:  # of a cache passed in, or of keys alone, by autocast
        dtype = torch.promote_types(states.dtype, new.dtype)
        states, new = states.to(dtype), new.to(dtype)
    return states.scatter_(2, entries, new)


def grown(states: torch.Tensor, capacity: int) -> torch.Tensor:
    # Zeros, because what is masked is multiplied by zero: left-over NaNs in fresh memory would survive that.
    new = states.new_zeros((*states.shape[:2], capacity, states.shape[3]))
    new[:, :, : states.shape[2]] = states
    return new


def gathered(states: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """`states[b, :, entries[b, i]]` for every i: `[batch, heads, i, head_dim]`."""
    entries = entries.to(states.device)[:, None, :, None]
    return states.gather(2, entries.expand(-1, states.shape[1], -1, states.shape[3]))


class RowCache(DynamicCache):
    """A cache in which every batch row has a length of its own.

    A forward writes its rows behind each batch row's length; committing the first n of them moves the length by n, and
    the others are overwritten by the next forward. Nothing is copied but when the capacity doubles, up to `most`; a
    static cache has room for as many from the beginning.

    An ordinary cache has columns instead, the same for all batch rows, some of which hold no text (padding).
    `of_columns` and `to_columns` go from one to the other.
    """

    def __init__(
        self, batch_size: int, most: int, device: torch.device, keep_all: bool = False, is_static: bool = False
    ):
        super().__init__()
        self.most, self.is_static = most, is_static  # entries that a forward will ever read
        self.keep_all = keep_all  # whether to_columns will be asked for, which needs the rows that left as well
        self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)  # entries that count, per batch row
        self.batch_rows = torch.arange(batch_size, device=device)  # which rows of the whole batch these are
        self.left_behind = []  # batch_rows, keys and values of each layer, from before every select
        self.live = 0  # entries that the forward at hand reads
        self.entries = None  # [batch, 1, rows, 1]: where it writes
        self.ends = None  # [batch]: how many entries its last row sees, if attention asks for that instead of a mask

    @classmethod
    def of_columns(cls, cache: DynamicCache, is_text: torch.Tensor, most: int, keep_all: bool = False) -> "RowCache":
        """Copies the columns of `cache` that hold text, `is_text` `[batch, columns]`, and leaves `cache` as it is."""
        if is_text.shape[1] > 0 and len(cache.layers[0].keys) != len(is_text):
            raise ValueError(
                f"past_key_values holds {len(cache.layers[0].keys)} rows and the batch has {len(is_text)} (input_ids "
                "times num_return_sequences); pass as many, past_key_values.batch_repeat_interleave(n) makes them."
            )
        rows = cls(len(is_text), most, is_text.device, keep_all)
        rows.lengths = is_text.sum(-1)
        columns = (~is_text).int().argsort(dim=-1, stable=True)  # those with text first, in order
        columns = columns[:, : int(rows.lengths.max())]
        for layer_idx, layer in enumerate(cache.layers if is_text.shape[1] > 0 else ()):
            keys, values = gathered(layer.keys, columns), gathered(layer.values, columns)
            rows.layers.append(RowLayer())
            rows.layers[layer_idx].lazy_initialization(keys, values)
            rows.layers[layer_idx].keys, rows.layers[layer_idx].values = keys, values
        return rows

    def to_columns(self, is_text: torch.Tensor) -> DynamicCache:
        """An ordinary cache of the whole batch, with an entry in each column that holds text and zeros elsewhere."""
        entries = (is_text.cumsum(-1) - 1).clamp(min=0)  # [batch, columns]
        parts = [*self.left_behind, (self.batch_rows, [(layer.keys, layer.values) for layer in self.layers])]
        cache = DynamicCache()
        for layer_idx in range(len(self.layers)):
            columns = []
            for kind in (0, 1):
                like = parts[0][1][layer_idx][kind]
                states = like.new_zeros((len(is_text), like.shape[1], is_text.shape[1], like.shape[3]))
                for batch_rows, layers in parts:  # a row is as it was in the last part that has it
                    part = layers[layer_idx][kind]
                    there = gathered(part, entries[batch_rows].clamp(max=part.shape[2] - 1))
                    holds_text = is_text[batch_rows][:, None, :, None].to(part.device)
                    states[batch_rows.to(part.device)] = torch.where(holds_text, there, 0)
                columns.append(states)
            cache.update(*columns, layer_idx)
        return cache

    def begin_forward(
        self, num_rows: int, live: int, queries_seen: torch.Tensor | None = None, knows_ends: bool = False
    ) -> torch.Tensor | None:
        """Puts the next `num_rows` rows behind each length, among the first `live` entries.

        Returns which entries each row sees, `[batch, 1, rows, live]`, of the rows of this forward those before it or
        as `queries_seen` says (see `WindowQueries`); or None where that is plain causality, up to `ends` of each batch row
        if attention `knows_ends`.
        """
        last = self.lengths[:, None] + torch.arange(num_rows, device=self.lengths.device)  # that a row sees
        self.live, self.entries, self.ends = live, last[:, None, :, None], None
        if queries_seen is None and knows_ends:
            self.ends = (self.lengths + num_rows).int()
        if queries_seen is None and (knows_ends or live == num_rows):  # the latter if they are the first
            return None
        return seen_entries(last, queries_seen, live)

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        while len(self.layers) <= layer_idx:
            self.layers.append(RowLayer())
        return self.layers[layer_idx].write(key_states, value_states, self)

    def commit(self, num_rows: torch.Tensor) -> None:
        self.lengths.add_(num_rows)
        self.live, self.entries, self.ends = 0, None, None

    def select(self, rows: torch.Tensor) -> None:
        if self.keep_all:
            self.left_behind.append((self.batch_rows, [(layer.keys, layer.values) for layer in self.layers]))
        self.lengths, self.batch_rows = self.lengths[rows], self.batch_rows[rows]
        for layer in self.layers:
            chosen = rows.to(layer.device)
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
