"""Makes batches of the dual-stream objective: draws masks, and puts masked blocks behind the clean tokens."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch

from wedlm.training.data_options import check_choices
from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.dual_stream import MEMORY, PADDING, PREDICTION
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
            if "teachers" in sample:  # they are positions in the row
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
        epoch = [] if self.is_evaluation else [self._epoch.item()]
        return np.random.default_rng([self.seed, *epoch, index])

    def pad(self, name: str, rows: list[np.ndarray]) -> torch.Tensor:
        padding = {**PADDING_VALUES, "input_ids": self.pad_token_id}.get(name, 0)
        return torch.nn.utils.rnn.pad_sequence(
            [torch.as_tensor(row, dtype=DTYPES.get(name, torch.long)) for row in rows],
            batch_first=True,
            padding_value=padding,
        )


@dataclass
class DualStreamCollator(StreamCollator):
    """The collate function of a DataLoader or Trainer, which makes the batches that `WeDLMForCausalLM` trains on.

    It takes sequences of one or more samples, with four columns: `input_ids`; `labels`, the token itself (not shifted)
    or -100 where there is no loss, as in a prompt; `sample_lengths`; and `sample_indices`, the numbers of the samples
    in the data. The masks of a sample depend only on `seed`, on the epoch and on the number of the sample.

    Each sequence becomes a row of the batch. A sample of L tokens takes 2L places in it. The first L are the memory
    stream, which has the tokens as they are. The others are the prediction stream, which has the tokens in blocks, and
    in each block the observed tokens before the masked ones. In the memory stream the target is the next token, with
    weight 1. In the prediction stream the target of a masked token is the token itself, weighted by `loss_weighting`.

    Example:

        collator = DualStreamCollator(mask_token_id=9, block_size=3)
        sequence = {
            "input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "sample_lengths": [4], "sample_indices": [2]
        }
        collator([sequence]) == {
            "input_ids":      [[5, 6, 7, 8, 5, 7, 9, 9]],
            "position_ids":   [[0, 1, 2, 3, 0, 2, 1, 3]],
            "sample_ids":     [[0, 0, 0, 0, 0, 0, 0, 0]],  # the sample's number in the sequence; -1 for padding
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
    suffix_mask_probability: float = 0.0  # of a block that masks its last tokens instead of random ones
    loss_weighting: Literal["weighted", "uniform"] = "weighted"  # 1 / gamma of the block, or 1
    mask_draws: int = 1  # how often a sample is in the prediction stream, each time with other masks
    pad_token_id: int = 0
    # Whether blocks without a masked token, such as those of a long prompt, are left out. They predict nothing and no
    # other query sees them, so losses and gradients stay the same. A sample without any keeps its last block.
    drop_idle_blocks: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.block_size < 1:
            raise ValueError(f"block_size={self.block_size} is not a number of tokens; pass 1 or more, 32 by default.")
        if self.mask_draws < 1:
            raise ValueError(f"mask_draws={self.mask_draws} is not a number of draws; pass 1 or more.")
        if not 0 <= self.suffix_mask_probability <= 1:
            raise ValueError(
                f"suffix_mask_probability={self.suffix_mask_probability} is not a probability; pass a number from 0 "
                "to 1."
            )
        check_choices(self)

    def streams(self, tokens: np.ndarray, labels: np.ndarray, index: int) -> dict[str, np.ndarray]:
        draws = self.draws(index, labels != NO_TARGET)
        positions = np.arange(len(tokens))
        blocks = positions // self.block_size
        drawn_tokens, drawn_labels, drawn_positions = (
            np.tile(each, self.mask_draws) for each in (tokens, labels, positions)
        )
        # All draws of a block lie between the memory of the block before it and its own.
        numbers = np.concatenate([blocks * self.mask_draws + draw for draw in range(self.mask_draws)])
        gammas = np.concatenate([np.where(masked, gammas[blocks], 0) for gammas, masked in draws])
        masked = gammas > 0
        order = np.lexsort((masked, numbers))  # block after block, the observed tokens before the masked ones
        if self.drop_idle_blocks:
            has_masked = np.bincount(numbers, masked) > 0
            has_masked[-1] |= not has_masked.any()
            order = order[has_masked[numbers[order]]]
        next_labels = np.append(labels[1:], NO_TARGET)
        weights = masked.astype(float)  # of a masked token 1, or 1 / gamma of its block
        if self.loss_weighting == "weighted":
            weights[masked] /= gammas[masked]

        def streams(memory, prediction):
            return np.concatenate([memory, prediction[order]])

        return {
            "input_ids": streams(tokens, np.where(masked, self.mask_token_id, drawn_tokens)),
            "position_ids": streams(positions, drawn_positions),
            "stream_ids": np.repeat([MEMORY, PREDICTION], [len(tokens), len(order)]),
            "block_ids": streams((blocks + 1) * self.mask_draws - 1, numbers),
            "targets": streams(next_labels, np.where(masked, drawn_labels, NO_TARGET)),
            "target_weights": streams(next_labels != NO_TARGET, weights),
            "gammas": streams(np.zeros(len(tokens)), gammas),
        }

    def draws(self, index: int, maskable: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        settings = self.block_size, self.generator(index), self.suffix_mask_probability
        return [draw_masks(maskable, *settings) for _ in range(self.mask_draws)]


def draw_masks(
    maskable: np.ndarray, block_size: int, rng: np.random.Generator, suffix_mask_probability: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a gamma from (0, 1] for each block, and masks round(n * gamma) of the block's n maskable tokens.

    A block masks its last maskable tokens with `suffix_mask_probability`, and otherwise any of them, uniformly.
    Returns the gammas `[blocks]`, and whether each token is masked `[tokens]`.
    """
    positions = np.arange(len(maskable))
    blocks = positions // block_size
    num_blocks = blocks[-1] + 1
    # Numbers are drawn even where none is needed, so that no draw depends on the labels, on suffix_mask_probability or
    # on another draw.
    gammas = 1 - rng.random(num_blocks)
    masks_suffix = rng.random(num_blocks) < suffix_mask_probability
    rank = np.where(masks_suffix[blocks], -positions, rng.random(len(maskable)))  # the lowest ranks are masked
    masked = np.zeros(len(maskable), dtype=bool)
    for block, gamma in enumerate(gammas):
        tokens = np.flatnonzero(maskable & (blocks == block))
        masked[tokens[np.argsort(rank[tokens])[: round(len(tokens) * gamma)]]] = True
    return gammas, masked


def read_columns(sequence: Mapping) -> list[np.ndarray]:
    if missing := [column for column in COLUMNS if column not in sequence]:
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
