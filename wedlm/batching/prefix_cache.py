"""The prefix cache: keys and values of texts that have left a running batch, for requests that begin alike."""

from collections import OrderedDict
from typing import NamedTuple

import torch


class CachedText(NamedTuple):
    """A text with its keys and values.

    Args:
        tokens (`list[int]`): Its tokens.
        layers (`list[tuple[torch.Tensor, torch.Tensor]]`): `[1, heads, tokens, head_dim]` each.
    """

    tokens: list[int]
    layers: list[tuple[torch.Tensor, torch.Tensor]]


class PrefixCache:
    """The texts used last, as many as fit."""

    def __init__(self):
        self.texts: OrderedDict[int, CachedText] = OrderedDict()  # the text used last is the last one
        self.last_name = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts.values())

    def keep(self, text: CachedText, max_tokens: int) -> None:
        """Keeps a text in the place of those that it continues, if it fits; the cache holds so many tokens at most."""
        if len(text.tokens) > max_tokens:
            return
        for name, each in list(self.texts.items()):
            if num_common(each.tokens, text.tokens) == len(each.tokens):
                del self.texts[name]
        self.last_name += 1
        self.texts[self.last_name] = text
        self.shrink(max_tokens)

    def shrink(self, max_tokens: int) -> None:
        """Drops the texts that were not used for longest, until the others have so many tokens at most."""
        num_tokens = self.num_tokens
        while num_tokens > max(max_tokens, 0):
            num_tokens -= len(self.texts.popitem(last=False)[1].tokens)

    def longest_prefix(self, tokens: list[int], is_used: bool) -> tuple[int, CachedText | None]:
        """The text that has most of these tokens at its beginning, the newest of several, and how many.

        Args:
            tokens (`list[int]`): The tokens.
            is_used (`bool`): Whether that counts as a use of the text.
        """
        shared = {name: num_common(self.texts[name].tokens, tokens) for name in reversed(self.texts)}
        best = max(shared, key=shared.get, default=None)
        if best is None or shared[best] == 0:
            return 0, None
        if is_used:
            self.texts.move_to_end(best)
        return shared[best], self.texts[best]


def num_common(these: list[int], others: list[int]) -> int:
    """The number of tokens that two texts have in common at their beginning.

    >>> num_common([1, 2, 3], [1, 2, 4, 5]), num_common([1, 2], [1, 2, 3])
    (2, 2)
    """
    number = min(len(these), len(others))
    if these[:number] == others[:number]:
        return number
    return next(i for i in range(number) if these[i] != others[i])
