"""Texts that stay for others with the same beginning."""

import torch

from wedlm.batching.shared_cache import CachedText, PrefixCache


def text_of(*tokens):
    states = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None]
    return CachedText(list(tokens), [(states, -states)])


def test_the_longest_common_beginning_is_found():
    cached = PrefixCache()
    for each in (text_of(1, 2, 3), text_of(1, 2, 9, 9), text_of(4)):
        cached.add(each, 100)
    number, text = cached.longest_prefix([1, 2, 9, 5], is_used=False)
    assert number == 3 and text.tokens == [1, 2, 9, 9]
    assert cached.longest_prefix([1, 2], is_used=False)[1].tokens == [1, 2, 9, 9]  # the newest of several
    assert cached.longest_prefix([8, 1], is_used=True) == (0, None)
    assert PrefixCache().longest_prefix([1], is_used=True) == (0, None)
    assert text.layers[0][0].flatten().tolist() == [1, 2, 9, 9]


def test_what_was_not_used_for_longest_goes_first():
    cached = PrefixCache()
    for each in (text_of(1, 1), text_of(2, 2), text_of(3, 3)):
        cached.add(each, 6)
    cached.longest_prefix([1], is_used=True)
    cached.longest_prefix([2], is_used=False)
    cached.add(text_of(4), 6)
    assert [each.tokens for each in cached.texts] == [[3, 3], [1, 1], [4]] and cached.num_tokens == 5
    cached.add(text_of(5, 5, 5, 5, 5, 5, 5), 6)
    assert cached.num_tokens == 5, "a text that can never fit drops nothing"
    cached.shrink(0)
    assert cached.num_tokens == 0


def test_a_text_takes_the_place_of_those_that_it_continues():
    cached = PrefixCache()
    for each in (text_of(1, 2), text_of(1, 3), text_of(1, 2, 3)):
        cached.add(each, 100)
    assert [each.tokens for each in cached.texts] == [[1, 3], [1, 2, 3]]
