"""The batches of draft training: their groups are those of verified decoding."""

import numpy as np
import pytest
import torch
from helpers import MASK, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.training.draft_collator import FIRST_WEIGHT, DraftCollator
from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.dual_stream import PREDICTION, StreamQueries, dense_mask
from wedlm.training.target_loss import NO_TARGET


def sequence(*samples, first=0):
    """A sequence of (text, number of prompt tokens) for each sample."""
    return {
        "input_ids": [token for text, _ in samples for token in text],
        "labels": [token for text, prompt in samples for token in [NO_TARGET] * prompt + text[prompt:]],
        "sample_lengths": [len(text) for text, _ in samples],
        "sample_indices": list(range(first, first + len(samples))),
    }


def text_of(length, seed=0):
    return random_tokens(1, length, seed)[0].tolist()


def mask_of(batch):
    """Which query of the one row sees which."""
    index = torch.arange(batch["input_ids"].shape[1])[None]
    return dense_mask(StreamQueries(batch["sample_ids"], batch["stream_ids"], batch["block_ids"], index))[0, 0]


def obvious_sees(batch, row, query, key):
    """From the words of the docstring: the text up to the anchor, and the MASKs of the group so far."""
    of = {name: batch[name][row].tolist() for name in batch}
    if of["sample_ids"][query] != of["sample_ids"][key]:
        return False
    if of["stream_ids"][query] != PREDICTION:
        return of["stream_ids"][key] != PREDICTION and key <= query
    if of["stream_ids"][key] == PREDICTION:
        return query - of["draft_places"][query] < key <= query
    return of["position_ids"][key] <= of["position_ids"][query] - of["draft_places"][query]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=3),
    st.integers(2, 6),
    st.booleans(),
)
@property_settings(40, deadline=None)
def test_rows_say_what_they_should(lengths, window_size, mask_shift):
    samples = [(text_of(length, seed=i), min(prompt, length)) for i, (length, prompt) in enumerate(lengths)]
    batch = DraftCollator(MASK, window_size, mask_shift=mask_shift)([sequence(*samples)])
    mask = mask_of(batch)
    width = batch["input_ids"].shape[1]
    for query in range(width):
        assert mask[query].tolist() == [obvious_sees(batch, 0, query, key) for key in range(width)]
        teacher, place = batch["teachers"][0, query].item(), batch["draft_places"][0, query].item()
        if place == 0:
            assert teacher == NO_TEACHER and batch["target_weights"][0, query] == 0
            continue
        assert 1 <= place <= window_size and batch["input_ids"][0, query] == MASK
        first = 1 if mask_shift else FIRST_WEIGHT
        assert batch["target_weights"][0, query].item() == pytest.approx(first if place == 1 else 1)
        # The teacher is the token of the text in the same sample that predicts what the MASK predicts.
        assert batch["sample_ids"][0, teacher] == batch["sample_ids"][0, query]
        assert batch["stream_ids"][0, teacher] != PREDICTION
        assert batch["position_ids"][0, teacher] == batch["position_ids"][0, query] - int(not mask_shift)


def test_packed_samples_and_padding_change_no_row_of_a_sample():
    collator, texts = DraftCollator(MASK, 4, seed=3), [(text_of(n, seed=n), 3) for n in (15, 9)]
    packed = collator([sequence(*texts)])
    alone = [collator([sequence(text, first=i)]) for i, text in enumerate(texts)]
    padded = collator([sequence(text, first=i) for i, text in enumerate(texts)])
    start = 0
    for row, batch in enumerate(alone):
        width = batch["input_ids"].shape[1]
        for name, values in batch.items():
            in_row = packed[name][0, start : start + width]
            if name == "teachers":
                in_row = torch.where(in_row == NO_TEACHER, NO_TEACHER, in_row - start)
            assert torch.equal(in_row, values[0] + row * (name == "sample_ids"))
            assert torch.equal(padded[name][row, :width], values[0])
        assert (padded["teachers"][row, width:] == NO_TEACHER).all()
        assert not padded["target_weights"][row, width:].any()
        start += width


def test_anchors_begin_behind_the_prompt_and_cover_the_answer_twice():
    collator, size, length = DraftCollator(MASK, 8), 8, 400
    labels = np.r_[[False] * 10, [True] * length]
    covered, firsts, lasts, lengths = np.zeros(10 + length), set(), set(), []
    for seed in range(50):
        anchors = collator.anchors(labels, np.random.default_rng(seed))
        firsts.add(anchors[0][0])
        lasts.add(anchors[-1][0])
        for anchor, end in anchors:
            assert 9 <= anchor < end - 1 <= 9 + length
            covered[anchor + 1 : end] += 1 / 50
            if anchor + size < 10 + length:  # not cut by the end of the answer
                lengths.append(end - anchor - 1)
    assert firsts == {9, 10, 11, 12} and max(lasts) == 8 + length and not covered[:10].any()
    assert 1.8 < covered[10 + size : -size].mean() < 2.2
    assert all(collator.anchors(labels[8:12], np.random.default_rng(seed)) for seed in range(20))  # a short answer
    assert set(lengths) == set(range(2, size + 1)) and 0.9 < np.mean(lengths) / np.mean(range(2, size + 1)) < 1.1
