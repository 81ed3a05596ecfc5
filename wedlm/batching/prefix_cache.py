"""The prefix cache: keys and values of finished sequences, for requests that begin with the same tokens."""

from dataclasses import dataclass

import torch


@dataclass(eq=False)
class CachedText:
    tokens: list[int]
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values, `[1, heads, tokens, head_dim]` each


class PrefixCache:
    """The least recently used sequences leave first when there are more tokens than fit."""

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
    """The number of leading tokens that two texts share.

    >>> num_common([1, 2, 3], [1, 2, 4, 5]), num_common([1, 2], [1, 2, 3])
    (2, 2)
    """
    number = min(len(these), len(others))
    if these[:number] == others[:number]:
        return number
    return next(i for i in range(number) if these[i] != others[i])
