"""Makes batches of the dual-stream objective: for each sample the clean tokens, and then the masked blocks."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch

from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.dual_stream import MEMORY, PADDING, PREDICTION
from wedlm.training.masking import Draws, draw_masks, prediction_order
from wedlm.training.target_loss import NO_TARGET

COLUMNS = ("input_ids", "labels", "sample_lengths", "sample_indices")
DTYPES = {"target_weights": torch.float32, "gammas": torch.float32}  # the others are integers
PADDING_VALUES = {"sample_ids": PADDING, "targets": NO_TARGET, "teachers": NO_TEACHER}  # the others are padded with 0


class StreamCollator:
    """Makes batches of the two streams of each sample. A subclass makes the streams of one sample, from its draws."""

    mask_token_id: int
    seed: int
    pad_token_id: int

    def __post_init__(self):
        if self.mask_token_id is None:
            raise ValueError(
                "mask_token_id is None, but the collator puts MASK tokens into the prediction stream; pass "
                "mask_token_id=model.config.mask_token_id of a checkpoint that has one."
            )
        self.is_evaluation = False
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # DataLoader workers keep seeing it

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the draws, also in DataLoader workers that are already running."""
        self._epoch.fill_(epoch)

    def for_evaluation(self) -> Self:
        """Returns a collator that draws the same in every epoch."""
        collator = copy.copy(self)
        collator.is_evaluation = True
        return collator

    def __call__(self, sequences: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        rows = [self.row(sequence) for sequence in sequences]
        return {name: self.pad(name, [row[name] for row in rows]) for name in rows[0]}

    def row(self, sequence: Mapping) -> dict[str, np.ndarray]:
        """Returns the row of the batch that a sequence becomes, `{"input_ids": [queries], ...}`, without padding."""
        input_ids, labels, lengths, indices = read_columns(sequence)
        ends = np.cumsum(lengths)
        samples, num_queries = [], 0
        for i, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
            tokens, targets = input_ids[start:end], labels[start:end]
            self.check_sample(tokens, targets, indices[i])
            sample = self.streams(tokens, targets, indices[i])
            if "teachers" in sample:  # they are places in the row
                sample["teachers"] += num_queries * (sample["teachers"] != NO_TEACHER)
            num_queries += len(sample["input_ids"])
            samples.append({"sample_ids": np.full(len(sample["input_ids"]), i), **sample})
        return {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}

    def streams(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> dict[str, np.ndarray]:
        """Returns the memory stream and then the prediction stream of a sample."""
        raise NotImplementedError

    def check_sample(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> None:
        has_loss = labels != NO_TARGET
        if (other := np.flatnonzero(has_loss & (labels != tokens))).size:
            raise ValueError(
                f"labels of sample {index} hold {labels[other[0]]} at position {other[0]}, where input_ids hold "
                f"{tokens[other[0]]}; labels are not shifted: repeat the token, or put -100 where there is no loss."
            )
        if (masks := np.flatnonzero(has_loss & (tokens == self.mask_token_id))).size:
            raise ValueError(
                f"labels of sample {index} hold the MASK token, {self.mask_token_id}, at position {masks[0]}, but "
                "decoding never writes it; take it out of the text."
            )

    def generator(self, index: int) -> np.random.Generator:
        """Returns the generator of a sample's draws."""
        return np.random.default_rng(
            [self.seed, index] if self.is_evaluation else [self.seed, self._epoch.item(), index]
        )

    def pad(self, name: str, rows: list[np.ndarray]) -> torch.Tensor:
        padding = {**PADDING_VALUES, "input_ids": self.pad_token_id}.get(name, 0)
        return torch.nn.utils.rnn.pad_sequence(
            [torch.as_tensor(row, dtype=DTYPES.get(name, torch.long)) for row in rows],
            batch_first=True,
            padding_value=padding,
        )


@dataclass
class DualStreamCollator(StreamCollator):
    """Makes the batches that `WeDLMForCausalLM` trains on; the collate function of a DataLoader or Trainer.

    It takes sequences, which are one or more samples behind each other, as four columns: `input_ids`; `labels`, the
    token itself (not shifted) or -100 where there is no loss, as in a prompt; `sample_lengths`; and `sample_indices`,
    the numbers of the samples in the data. The masks of a sample are drawn from `seed`, the epoch and its number, and
    from nothing else.

    Each sequence becomes a row of the batch. A sample of L tokens takes 2L queries: its memory stream, which is its
    tokens, and its prediction stream, which is its tokens in blocks, the observed ones of a block before the masked
    ones. A memory query has the next token as its target, with weight 1. A masked query has its own token as its
    target, with the weight that `loss_weighting` gives it. `wedlm.training.loss` divides the weights by their sums.

    Args:
        mask_token_id (`int`):
            The token that stands in place of a masked one.
        block_size (`int`, *optional*, defaults to 32):
            The number of tokens of a block.
        seed (`int`, *optional*, defaults to 0):
            The seed of the masks.
        suffix_mask_probability (`float`, *optional*, defaults to 0.0):
            The share of blocks that mask their last tokens, as a decoding window mostly looks, instead of random ones.
        loss_weighting (`str`, *optional*, defaults to `"weighted"`):
            The weight of a masked query: `"weighted"` for 1 / gamma of its block, `"uniform"` for 1.
        pad_token_id (`int`, *optional*, defaults to 0):
            The token of padding. No other query sees it.
        drop_idle_blocks (`bool`, *optional*, defaults to `False`):
            Whether the prediction stream leaves out blocks without a masked token, such as those of a long prompt.
            They predict nothing and no other query sees them, so losses and gradients stay the same. A sample without
            any masked token keeps its last block.

    Example:

        collator = DualStreamCollator(mask_token_id=9, block_size=3)
        sequence = {
            "input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "sample_lengths": [4], "sample_indices": [2]
        }
        collator([sequence]) == {
            "input_ids":      [[5, 6, 7, 8, 5, 7, 9, 9]],
            "position_ids":   [[0, 1, 2, 3, 0, 2, 1, 3]],
            "sample_ids":     [[0, 0, 0, 0, 0, 0, 0, 0]],  # the sample's place in the sequence; -1 for padding
            "stream_ids":     [[0, 0, 0, 0, 1, 1, 1, 1]],  # 0 memory, 1 prediction
            "block_ids":      [[0, 0, 0, 1, 0, 0, 0, 1]],
            "targets":        [[6, 7, 8, -100, -100, -100, 6, 8]],
            "target_weights": [[1, 1, 1, 0, 0, 0, 2.65, 1.75]],
            "gammas":         [[0, 0, 0, 0, 0, 0, 0.38, 0.57]],
        }
    """

    mask_token_id: int
    block_size: int = 32
    seed: int = 0
    suffix_mask_probability: float = 0.0
    loss_weighting: Literal["weighted", "uniform"] = "weighted"
    pad_token_id: int = 0
    drop_idle_blocks: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.block_size < 1:
            raise ValueError(f"block_size={self.block_size} is no number of tokens; pass 1 or more, 32 by default.")
        if not 0 <= self.suffix_mask_probability <= 1:
            raise ValueError(
                f"suffix_mask_probability={self.suffix_mask_probability} is no probability; pass a number from 0 to 1."
            )
        if self.loss_weighting not in ("weighted", "uniform"):
            raise ValueError(
                f'loss_weighting={self.loss_weighting!r} is not known; pass "weighted", which divides the loss of a '
                'masked token by its gamma, or "uniform".'
            )

    def streams(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> dict[str, np.ndarray]:
        return self.dual_stream_sample(tokens, labels, self.draw(index, labels != NO_TARGET))

    def draw(self, index: int, maskable: np.ndarray) -> Draws:
        return draw_masks(maskable, self.block_size, self.generator(index), self.suffix_mask_probability)

    def dual_stream_sample(self, tokens: np.ndarray, labels: np.ndarray, draws: Draws) -> dict[str, np.ndarray]:
        """Returns the memory stream and then the prediction stream of a sample."""
        positions = np.arange(len(tokens))
        blocks = positions // self.block_size
        order = prediction_order(draws.masked, self.block_size)
        if self.drop_idle_blocks:
            has_masked = np.bincount(blocks, draws.masked) > 0
            has_masked[-1] |= not has_masked.any()
            order = order[has_masked[blocks[order]]]
        gammas = np.where(draws.masked, draws.gammas[blocks], 0)
        next_labels = np.append(labels[1:], NO_TARGET)
        weights = draws.masked / np.where(draws.masked & (self.loss_weighting == "weighted"), gammas, 1)

        def streams(memory, prediction):
            return np.concatenate([memory, prediction[order]])

        return {
            "input_ids": streams(tokens, np.where(draws.masked, self.mask_token_id, tokens)),
            "position_ids": streams(positions, positions),
            "stream_ids": np.repeat([MEMORY, PREDICTION], [len(tokens), len(order)]),
            "block_ids": streams(blocks, blocks),
            "targets": streams(next_labels, np.where(draws.masked, labels, NO_TARGET)),
            "target_weights": streams(next_labels != NO_TARGET, weights),
            "gammas": streams(np.zeros(len(tokens)), gammas),
        }


def read_columns(sequence: Mapping) -> list[np.ndarray]:
    missing = [column for column in COLUMNS if column not in sequence]
    if missing:
        raise ValueError(
            f"A sequence has the columns {', '.join(sequence)}, and {', '.join(missing)} is missing; pass input_ids, "
            "labels (-100 where there is no loss), sample_lengths and sample_indices ([len(input_ids)] and [its "
            "number] if it is one sample), and to Trainer remove_unused_columns=False, so that it keeps them."
        )
    input_ids, labels, lengths, indices = (np.asarray(sequence[column]) for column in COLUMNS)
    consistent = len(input_ids) == len(labels) == lengths.sum() and len(lengths) == len(indices) >= 1
    if not consistent or lengths.min() < 1:
        raise ValueError(
            f"A sequence has {len(input_ids)} input_ids, {len(labels)} labels, sample_lengths={lengths.tolist()} and "
            f"sample_indices={indices.tolist()}; give each sample a length of 1 or more and an index, so that the "
            "lengths add up to the number of input_ids and of labels."
        )
    return [input_ids, labels, lengths, indices]
