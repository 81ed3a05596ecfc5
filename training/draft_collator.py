"""Makes batches of groups of MASKs behind the tokens of a sample, for a draft adapter or as I-DLM trains."""

from dataclasses import dataclass

import numpy as np

from wedlm.training.collator import StreamCollator
from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.dual_stream import MEMORY, PREDICTION
from wedlm.training.target_loss import NO_TARGET

FIRST_WEIGHT = 0.3  # of the first MASK of a group: the model itself gives its token, so it is never a draft


@dataclass
class DraftCollator(StreamCollator):
    """Makes the batches on which a draft adapter trains; the collate function of a DataLoader or Trainer.

    It takes the sequences of `DualStreamCollator`. A sample becomes its tokens, the memory stream, and then groups of
    MASKs. A group follows a token, its anchor. Its MASKs see the text up to the anchor and each other, in their order,
    exactly as in a step of verified decoding. The teacher of a MASK is the memory query that predicts the same token.

    With `mask_shift` a MASK predicts the token behind it (I-DLM). Its teacher is the memory query at its own place,
    and each MASK of a group makes a draft.

    Anchors and lengths of groups are drawn from `seed`, the epoch and the sample's number, so that every token of an
    answer is in about two groups, and late MASKs are fewer: a draft counts only if all before it are accepted.

    Example, where the anchors drawn are the first and the third token:

        collator = DraftCollator(mask_token_id=9, window_size=2)
        sequence = {
            "input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "sample_lengths": [4], "sample_indices": [0]
        }
        collator([sequence]) == {
            "input_ids":      [[5, 6, 7, 8, 9, 9, 9]],
            "position_ids":   [[0, 1, 2, 3, 1, 2, 3]],
            "sample_ids":     [[0, 0, 0, 0, 0, 0, 0]],
            "stream_ids":     [[0, 0, 0, 0, 1, 1, 1]],
            "block_ids":      [[0, 1, 2, 3, 1, 1, 3]],  # a group sees the memory with smaller numbers
            "teachers":       [[-1, -1, -1, -1, 0, 1, 2]],
            "target_weights": [[0, 0, 0, 0, 0.3, 1, 0.3]],
            "draft_places":   [[0, 0, 0, 0, 1, 2, 1]],  # of a MASK in its group
        }
    """

    mask_token_id: int
    window_size: int = 8  # the most MASKs of a group
    seed: int = 0
    mask_shift: bool = False
    pad_token_id: int = 0

    def streams(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> dict[str, np.ndarray]:
        is_answer = labels != NO_TARGET
        groups = [
            np.arange(anchor + 1, end)
            for anchor, end in self.anchors(is_answer, self.generator(index))
            if anchor + 1 < end
        ]
        positions = np.concatenate([np.arange(0), *groups])
        blocks = np.repeat([group[0] for group in groups], [len(group) for group in groups]).astype(int)
        places = positions - blocks + 1
        memory = np.arange(len(tokens))
        zeros = np.zeros(len(tokens), dtype=int)
        weights = np.where((places == 1) & (not self.mask_shift), FIRST_WEIGHT, 1.0)
        return {
            "input_ids": np.concatenate([tokens, np.full(len(positions), self.mask_token_id)]),
            "position_ids": np.concatenate([memory, positions]),
            "stream_ids": np.repeat([MEMORY, PREDICTION], [len(tokens), len(positions)]),
            "block_ids": np.concatenate([memory, blocks]),
            "teachers": np.concatenate([zeros + NO_TEACHER, positions - int(not self.mask_shift)]),
            "target_weights": np.concatenate([zeros, weights]),
            "draft_places": np.concatenate([zeros, places]),
        }

    def anchors(self, is_answer: np.ndarray, generator: np.random.Generator) -> list[tuple[int, int]]:
        """Draws the anchors of a sample; returns each with the end of its group, which may be empty."""
        anchors = []
        most = self.window_size // 2  # the longest way to the next anchor
        for start, stop in answers(is_answer):
            anchor = start - 1 + int(generator.integers(max(1, min(most, stop - start))))
            while anchor + 1 < stop:
                length = int(generator.integers(2, self.window_size + 1))
                anchors.append((anchor, min(anchor + 1 + length, stop - self.mask_shift)))  # the last is predicted
                anchor += int(generator.integers(1, most + 1))
        return anchors


@dataclass
class IDLMCollator(DraftCollator):
    """Makes the batches of I-DLM's objective (arXiv 2604.11035), as `DraftCollator` makes those of draft adapters.

    All tokens of an answer are masked, in groups of `window_size` one after another. The target of a query is the
    token behind it in the text, for MASKs and tokens alike, so the last token of an answer needs no MASK. Nothing is
    drawn.
    """

    mask_shift: bool = True

    def streams(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> dict[str, np.ndarray]:
        streams = super().streams(tokens, labels, index)
        del streams["teachers"]
        targets = np.append(labels[1:], NO_TARGET)[streams["position_ids"]]
        gammas = streams.pop("draft_places") > 0  # 1 at a MASK: all of its group is masked
        return {**streams, "targets": targets, "target_weights": targets != NO_TARGET, "gammas": gammas}

    def anchors(self, is_answer: np.ndarray, generator: np.random.Generator) -> list[tuple[int, int]]:
        return [
            (anchor, min(anchor + 1 + self.window_size, stop - 1))
            for start, stop in answers(is_answer)
            for anchor in range(start - 1, stop - 2, self.window_size)
        ]


def answers(is_answer: np.ndarray) -> list[tuple[int, int]]:
    """Returns the first position of each answer and the one behind its last; the first token of a text is left out."""
    bounds = np.flatnonzero(np.diff(is_answer, prepend=False, append=False))
    return [(max(start, 1), stop) for start, stop in bounds.reshape(-1, 2).tolist()]
