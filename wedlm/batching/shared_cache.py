"""The KV cache of a running batch, whose rows come and go, and the keys and values of texts that have ended."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from wedlm.generation.row_cache import RowCache, RowLayer
from wedlm.generation.static_steps import bucketed


class CacheBudget(NamedTuple):
    """The most entries of the cache that a row takes."""

    text: int  # the tokens of its text
    queries: int  # those of a step behind them

    @classmethod
    def entries_for_all(cls, budgets: list["CacheBudget"]) -> int:
        """The entries of each row in a forward over all of them, in which each has as many queries."""
        return max((each.text for each in budgets), default=0) + max((each.queries for each in budgets), default=0)


class SharedLayer(RowLayer):
    """Keys and values of the active rows, in memory that may be larger."""

    def __init__(self, size: tuple[int, int], active: slice):
        super().__init__()
        self.size = size  # the rows and entries of the memory
        self.active = active  # the rows of the next forward
        self.memory: list[torch.Tensor] = []  # keys and values, [rows, heads, entries, head_dim] each

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.memory = [zeros_like_states(states, self.size) for states in (key_states, value_states)]
        self.activate(self.active)
        self.is_initialized = True

    def activate(self, rows: slice) -> None:
        self.active = rows
        if self.memory:
            # (Where another size was refused, the memory may be larger than the size.)
            self.keys, self.values = (states[rows, :, : self.size[1]] for states in self.memory)

    def reallocate(self, size: tuple[int, int], num_kept: int) -> None:
        """Takes other memory, into which the first `num_kept` rows move."""
        for i, states in enumerate(self.memory):
            kept = states[:num_kept, :, : size[1]]
            self.memory[i] = zeros_like_states(states, size)
            self.memory[i][:num_kept, :, : kept.shape[2]] = kept
        self.size = size


class SharedCache(RowCache):
    """A RowCache whose rows come and go. New rows are the last ones, and the last ones fill the gaps of removed rows.

    A forward goes over the active rows; whoever runs it calls `activate` first. A static cache keeps its memory while
    there are no rows.
    """

    def __init__(self, device: torch.device, is_static: bool = False):
        super().__init__(0, 0, device, is_static=is_static)
        self.all_lengths = self.lengths
        self.budgets: list[CacheBudget] = []  # of each row
        self.size = 0, 0  # the rows and entries of the memory
        self.active = slice(0, 0)

    @property
    def num_rows(self) -> int:
        return len(self.budgets)

    @property
    def num_tokens(self) -> int:
        """The tokens for which memory is allocated, used or not."""
        rows, entries = self.size
        return rows * entries

    def num_tokens_with(self, budgets: list[CacheBudget]) -> int:
        """The tokens for which memory is needed when rows with these budgets are added."""
        budgets = self.budgets + budgets
        return len(budgets) * CacheBudget.entries_for_all(budgets)

    def activate(self, begin: int = 0, end: int | None = None) -> None:
        """Makes these rows, by default all that are in use, the rows of the next forward."""
        self.active = slice(begin, self.num_rows if end is None else end)
        self.lengths = self.all_lengths[self.active]  # a view: `commit` writes into it
        for layer in self.layers:
            layer.activate(self.active)

    def make_layers(self, number: int) -> None:
        while len(self.layers) < number:
            self.layers.append(SharedLayer(self.size, self.active))

    def add_rows(self, budgets: list[CacheBudget], max_tokens: int) -> None:
        """Adds an empty row for each budget; memory is allocated for so many tokens at most.

        Where a row or an entry is missing, other memory is taken: a bit more, if that leaves half of what is allowed.
        If it is refused, the rows that are there stay as they are.
        """
        budgets = self.budgets + budgets
        (rows, entries), num_rows, longest = self.size, len(budgets), CacheBudget.entries_for_all(budgets)
        if num_rows > rows or longest > entries:
            if longest > entries or num_rows * entries > max_tokens:
                entries = max(longest, min(bucketed(longest), max_tokens // 2 // num_rows))
            rows = max(num_rows, min(2 * num_rows, max_tokens // 2 // entries))
            self.reallocate((rows, entries))
        self.set_lengths(self.all_lengths[: self.num_rows])
        self.budgets = budgets
        self.activate()

    def set_lengths(self, lengths: torch.Tensor) -> None:
        """Gives the first rows of the memory these lengths, and the others 0."""
        self.all_lengths = pad(lengths, (0, max(0, self.size[0] - len(lengths))))

    def copy_prefix(self, row: int, layers: list[tuple[torch.Tensor, torch.Tensor]], number: int) -> None:
        """Copies the first entries of a text, `[1, heads, entries, head_dim]` for each layer, into an empty row."""
        self.make_layers(len(layers))
        for layer, text in zip(self.layers, layers, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(*text)
            for memory, states in zip(layer.memory, text, strict=True):
                memory[row, :, :number] = states[0, :, :number]
        self.all_lengths[row] = number

    def entries_of(self, row: int, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The first keys and values of a row, `[1, heads, number, head_dim]`, for each layer."""
        return [tuple(states[row : row + 1, :, :number] for states in layer.memory) for layer in self.layers]

    def remove_rows(self, rows: list[int]) -> list[int]:
        """Removes rows; returns the old index of each row that is left. Without rows there is no memory."""
        order = compacted(self.num_rows, rows)
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        lengths = self.all_lengths.tolist() if moved else []
        for layer in self.layers:
            for states in layer.memory:
                for new, old in moved:
                    states[new, :, : lengths[old]] = states[old, :, : lengths[old]]
        if not order and not self.is_static:
            self.free()
        self.set_lengths(self.all_lengths[order])
        self.budgets = [self.budgets[row] for row in order]
        self.activate()
        return order

    def free(self) -> None:
        """Frees the memory, when there are no rows."""
        self.layers, self.size = [], (0, 0)

    def shrink_to_fit(self) -> None:
        """Keeps no more memory than the budgets of the rows."""
        self.reallocate((self.num_rows, CacheBudget.entries_for_all(self.budgets)))

    def reallocate(self, size: tuple[int, int]) -> None:
        """Takes other memory for all layers. Where that is refused, their size is what each of them has."""
        try:
            for layer in self.layers:
                layer.reallocate(size, self.num_rows)
        except Exception:
            sizes = [(len(states), states.shape[2]) for layer in self.layers for states in layer.memory]
            size = tuple(map(min, zip(*sizes, strict=True)))
            raise
        finally:
            self.size, self.max_entries = size, size[1]
            for layer in self.layers:
                layer.size = size
            self.activate()


@dataclass(eq=False)
class CachedText:
    """A finished text, for requests that begin with the same tokens."""

    tokens: list[int]
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values, `[1, heads, tokens, head_dim]` each


class PrefixCache:
    """Finished texts, of which the least recently used leave first when there are more tokens than fit."""

    def __init__(self):
        self.texts: list[CachedText] = []  # the most recently used one is the last one

    @property
    def num_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    def add(self, text: CachedText, max_tokens: int) -> None:
        """Adds a text in place of its own prefixes, and evicts others until the cache has `max_tokens` at most."""
        if len(text.tokens) > max_tokens:
            return
        self.texts[:] = [each for each in self.texts if num_common(each.tokens, text.tokens) < len(each.tokens)]
        self.texts.append(text)
        self.shrink(max_tokens)

    def shrink(self, max_tokens: int) -> None:
        """Evicts the least recently used texts until the others have so many tokens at most."""
        num_tokens = self.num_tokens
        while num_tokens > max(max_tokens, 0):
            num_tokens -= len(self.texts.pop(0).tokens)

    def longest_prefix(self, tokens: list[int], is_used: bool) -> tuple[int, CachedText | None]:
        """The text that shares most leading tokens, the newest of several, and how many it shares.

        `is_used` says whether this counts as a use of the text.
        """
        shared = {text: num_common(text.tokens, tokens) for text in reversed(self.texts)}
        best = max(shared, key=shared.get, default=None)
        if best is None or shared[best] == 0:
            return 0, None
        if is_used:
            self.texts.remove(best)
            self.texts.append(best)
        return shared[best], best


def num_common(these: list[int], others: list[int]) -> int:
    """The number of leading tokens that two texts share."""
    number = min(len(these), len(others))
    if these[:number] == others[:number]:
        return number
    return next(i for i in range(number) if these[i] != others[i])


def zeros_like_states(states: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Memory for so many rows and entries."""
    # Zeros, since attention multiplies masked entries by zero: NaNs in fresh memory would survive that.
    return states.new_zeros((size[0], states.shape[1], size[1], states.shape[3]))


def compacted(number: int, removed: list[int]) -> list[int]:
    """The old index of each row when some of `number` rows were removed and the last ones have filled the gaps.

    >>> compacted(5, [1]), compacted(5, [0, 3]), compacted(2, [0, 1])
    ([0, 4, 2, 3], [4, 1, 2], [])
    """
    rows = list(range(number))
    for row in sorted(removed, reverse=True):
        last = rows.pop()
        if row < len(rows):
            rows[row] = last
    return rows
