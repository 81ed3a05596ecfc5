import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RowLayer(DynamicLayer):
    """Keys and values, `[batch, heads, capacity, head_dim]`, in memory allocated ahead and written by scatter."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_empty((*value_states.shape[:2], 0, value_states.shape[3]))
        self.is_initialized = True

    def write(
        self, key_states: torch.Tensor, value_states: torch.Tensor, entries: torch.Tensor, live: int, most: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts row r of batch row b at entry `entries[b, r]` and returns the first `live` entries, of `most` ever."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if live > self.keys.shape[2]:
            capacity = min(2 * live, most)
            self.keys, self.values = grown(self.keys, capacity), grown(self.values, capacity)
        entries = entries.to(self.device)[:, None, :, None]
        self.keys.scatter_(2, entries.expand_as(key_states), key_states)
        self.values.scatter_(2, entries.expand_as(value_states), value_states)
        return self.keys[:, :, :live], self.values[:, :, :live]


def grown(states: torch.Tensor, capacity: int) -> torch.Tensor:
    # Zeros, because what is masked is multiplied by zero: left-over NaNs in fresh memory would survive that.
    new = states.new_zeros((*states.shape[:2], capacity, states.shape[3]))
    new[:, :, : states.shape[2]] = states
    return new


class RowCache(DynamicCache):
    """A cache in which every batch row has a length of its own.

    A forward writes its rows behind each batch row's length; committing the first n of them moves the length by n, and
    the others are overwritten by the next forward. Nothing is copied but when the capacity doubles, up to `most`.
    """

    def __init__(self, batch_size: int, most: int, device: torch.device):
        super().__init__()
        self.most = most  # entries that a forward will ever read
        self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)  # entries that count, per batch row
        self.live = 0  # entries that the forward at hand reads
        self.entries = None  # [batch, rows]: where it writes

    def begin_forward(self, num_rows: int, longest: int) -> torch.Tensor | None:
        """Puts the next `num_rows` rows behind each length, the greatest of which is `longest`.

        Returns who sees whom, `[batch, 1, rows, entries]`, or None where that is plain causality.
        """
        self.live = longest + num_rows
        self.entries = self.lengths[:, None] + torch.arange(num_rows, device=self.lengths.device)
        if longest == 0:
            return None
        return (torch.arange(self.live, device=self.entries.device) <= self.entries[..., None])[:, None]

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        while len(self.layers) <= layer_idx:
            self.layers.append(RowLayer())
        return self.layers[layer_idx].write(key_states, value_states, self.entries, self.live, self.most)

    def commit(self, num_rows: torch.Tensor) -> None:
        self.lengths = self.lengths + num_rows

    def select(self, batch_rows: torch.Tensor) -> None:
        self.lengths = self.lengths[batch_rows]
        for layer in self.layers:
            chosen = batch_rows.to(layer.device)
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
