"""The cache of a running batch, whose rows come and go."""

from typing import NamedTuple

import torch

from .row_cache import RowCache, RowLayer
from .static_steps import bucketed


class Need(NamedTuple):
    """The entries that a row needs.

    Args:
        text (`int`): The most tokens of its text.
        queries (`int`): The most queries of a step behind them.
    """

    text: int
    queries: int

    @classmethod
    def of_all(cls, needs: list["Need"]) -> int:
        """The entries that each row needs in a forward over all of them, in which each has as many queries."""
        return max((each.text for each in needs), default=0) + max((each.queries for each in needs), default=0)


class SharedLayer(RowLayer):
    """Keys and values of the rows that are there: the first ones of a memory that has room for more.

    Args:
        memory (`list[torch.Tensor]`): Keys and values, `[rows, heads, entries, head_dim]` each.
    """

    def __init__(self, memory: list[torch.Tensor]):
        super().__init__()
        self.memory = memory
        self.lazy_initialization(*memory)

    def show(self, num_rows: int) -> None:
        """Makes the first rows of the memory the rows of the layer."""
        self.keys, self.values = (states[:num_rows] for states in self.memory)


class SharedCache(RowCache):
    """A RowCache that rows join and leave. A row that joins becomes the last one; the last takes the place of one
    that leaves. Joining and leaving copy one row each.

    Args:
        device (`torch.device`): The device of the lengths.
    """

    def __init__(self, device: torch.device):
        super().__init__(0, 0, device)
        self.needs: list[Need] = []  # of each row

    @property
    def num_rows(self) -> int:
        return len(self.needs)

    @property
    def room(self) -> tuple[int, int]:
        """The rows and entries that the memory has room for."""
        shapes = [states.shape for layer in self.layers for states in layer.memory] or [(0, 0, 0, 0)]
        return min(shape[0] for shape in shapes), min(shape[2] for shape in shapes)

    @property
    def num_tokens(self) -> int:
        """The tokens that the memory has room for."""
        rows, entries = self.room
        return rows * entries

    def num_tokens_with(self, needs: list[Need]) -> int:
        """The tokens that there must be room for when rows with these needs join."""
        needs = self.needs + needs
        return len(needs) * Need.of_all(needs)

    def join(self, row: RowCache, need: Need, max_tokens: int) -> None:
        """Takes in the one row of `row`.

        Args:
            row (`RowCache`): The row.
            need (`Need`): The entries that it needs.
            max_tokens (`int`): The most tokens that the memory may have room for.
        """
        place, length = self.num_rows, int(row.lengths)
        if not self.layers:
            self.layers = [SharedLayer([layer.keys[:0], layer.values[:0]]) for layer in row.layers]
        self.make_room([*self.needs, need], max_tokens)
        for layer, new in zip(self.layers, row.layers, strict=True):
            for states, of_row in zip(layer.memory, (new.keys, new.values), strict=True):
                states[place, :, :length] = of_row[0, :, :length]
        self.lengths = torch.cat([self.lengths, row.lengths])
        self.needs.append(need)
        self.show()

    def leave(self, place: int) -> None:
        """Drops a row. Without rows there is no memory."""
        last = self.num_rows - 1
        if place != last:
            length = int(self.lengths[last])
            for layer in self.layers:
                for states in layer.memory:
                    states[place, :, :length] = states[last, :, :length]
            self.lengths[place] = self.lengths[last]
            self.needs[place] = self.needs[last]
        self.lengths = self.lengths[:last]
        self.needs.pop()
        self.show()
        if not self.needs:
            self.layers = []

    def show(self) -> None:
        self.batch_rows = torch.arange(self.num_rows, device=self.lengths.device)
        for layer in self.layers:
            layer.show(self.num_rows)

    def make_room(self, needs: list[Need], max_tokens: int) -> None:
        """Takes other memory if a row or an entry is missing; a bit more, if that leaves half of what is allowed.

        Where memory is refused, the rows that are there stay as they are.
        """
        (rows, entries), num_rows, longest = self.room, len(needs), Need.of_all(needs)
        if num_rows <= rows and longest <= entries:
            return
        if longest > entries or num_rows * entries > max_tokens:
            entries = max(longest, min(bucketed(longest), max_tokens // 2 // num_rows))
        rows = max(num_rows, min(2 * num_rows, max_tokens // 2 // entries))
        num_kept, self.max_entries = self.num_rows, entries
        for layer in self.layers:
            for i, states in enumerate(layer.memory):
                # Zeros, since attention multiplies masked entries by zero: NaNs in fresh memory would survive that.
                new = states.new_zeros((rows, states.shape[1], entries, states.shape[3]))
                kept = states[:num_kept, :, :entries]
                new[:num_kept, :, : kept.shape[2]] = kept
                layer.memory[i] = new
