"""Texts that stay for others with the same beginning."""

import torch

from wedlm.batching.prefix_cache import KeptText, KeptTexts


def text_of(*tokens):
    states = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None]
    return KeptText(list(tokens), [(states, -states)])


def test_the_longest_common_beginning_is_found():
    kept = KeptTexts()
    for each in (text_of(1, 2, 3), text_of(1, 2, 9, 9), text_of(4)):
        kept.keep(each, 100)
    number, text = kept.best_for([1, 2, 9, 5], is_used=False)
    assert number == 3 and text.tokens == [1, 2, 9, 9]
    assert kept.best_for([8, 1], is_used=True) == (0, None) and KeptTexts().best_for([1], is_used=True) == (0, None)
    assert text.layers[0][0].flatten().tolist() == [1, 2, 9, 9]


def test_what_was_not_used_for_longest_goes_first():
    kept = KeptTexts()
    for each in (text_of(1, 1), text_of(2, 2), text_of(3, 3)):
        kept.keep(each, 6)
    kept.best_for([1], is_used=True)
    kept.best_for([2], is_used=False)
    kept.keep(text_of(4), 6)
    assert [each.tokens for each in kept.texts.values()] == [[3, 3], [1, 1], [4]] and kept.num_tokens == 5
    kept.keep(text_of(5, 5, 5, 5, 5, 5, 5), 6)
    assert kept.num_tokens == 5, "a text that can never fit drops nothing"
    kept.shrink(0)
    assert kept.num_tokens == 0


def test_of_texts_that_begin_alike_the_newest_counts():
    kept = KeptTexts()
    for each in (text_of(7, 1), text_of(7, 2), text_of(7, 3)):
        kept.keep(each, 6)
    assert kept.best_for([7, 4], is_used=True)[1].tokens == [7, 3]
    kept.keep(text_of(7, 4), 6)
    assert [each.tokens for each in kept.texts.values()] == [[7, 2], [7, 3], [7, 4]]


def test_a_text_takes_the_place_of_those_that_it_continues():
    kept = KeptTexts()
    for each in (text_of(1, 2), text_of(1, 3), text_of(1, 2, 3)):
        kept.keep(each, 100)
    assert [each.tokens for each in kept.texts.values()] == [[1, 3], [1, 2, 3]]
