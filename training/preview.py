"""Prints training data as the model will see it: samples with their loss, and one masked block."""

from collections.abc import Mapping
from itertools import groupby, islice

import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from wedlm.training.dual_stream import MEMORY, PREDICTION
from wedlm.training.target_loss import NO_TARGET

MARKS = "⟦", "⟧"
NUM_SEQUENCES = 3


def preview(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    batch: Mapping[str, torch.Tensor],
) -> str:
    """Shows the first sequences of a prepared dataset and one masked block of a batch of the collator.

    Text with loss stands between ⟦ and ⟧. Special tokens are shown. Control characters, backslashes and these marks
    are escaped as in Python, so that nothing in the data can act on a terminal.

        Sequence 0, sample 17: 4 tokens, 3 with loss
        <|im_start|>⟦Hello<|im_end|>⟧
    """
    parts = []
    for number, sequence in enumerate(islice(dataset, NUM_SEQUENCES)):
        start = 0
        for length, index in zip(sequence["sample_lengths"], sequence["sample_indices"], strict=True):
            input_ids = sequence["input_ids"][start : start + length]
            labels = sequence["labels"][start : start + length]
            num_loss_tokens = sum(label != NO_TARGET for label in labels)
            parts.append(
                f"Sequence {number}, sample {index}: {length} tokens, {num_loss_tokens} with loss\n"
                + marked_text(input_ids, labels, tokenizer)
            )
            start += length
    return "\n\n".join([*parts, masked_block(batch, tokenizer)]) + "\n"


def marked_text(input_ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    text = ""
    for has_loss, run in groupby(zip(input_ids, labels, strict=True), key=lambda pair: pair[1] != NO_TARGET):
        piece = shown([token for token, _ in run], tokenizer, break_lines=True)
        text += piece.join(MARKS) if has_loss else piece
    return text


def masked_block(batch: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase) -> str:
    """Shows the first block of the first row that has masked tokens.

    Block 2 of sample 0 in the batch: the observed tokens first, then the masked ones, by position
      observed  64 'The'  66 ' sat'
      masked    65 ' cat'  67 '.'
    """
    row = {name: values[0] for name, values in batch.items()}
    is_masked = (row["stream_ids"] == PREDICTION) & (row["input_ids"] == tokenizer.mask_token_id)
    if not is_masked.any():
        return "The batch has no masked token."
    sample, block = (row[name][is_masked][0].item() for name in ("sample_ids", "block_ids"))
    in_sample = row["sample_ids"] == sample
    in_memory = in_sample & (row["stream_ids"] == MEMORY)
    text, number = row["input_ids"][in_memory].tolist(), (row["block_ids"][in_memory].unique() < block).sum().item()
    in_block = in_sample & (row["stream_ids"] == PREDICTION) & (row["block_ids"] == block)

    def tokens(queries: torch.Tensor) -> str:
        positions = row["position_ids"][queries].tolist()
        return "  ".join(f"{position} '{shown([text[position]], tokenizer)}'" for position in positions)

    return (
        f"Block {number} of sample {sample} in the batch: "
        "the observed tokens first, then the masked ones, by position\n"
        f"  observed  {tokens(in_block & ~is_masked)}\n"
        f"  masked    {tokens(in_block & is_masked)}"
    )


def shown(input_ids: list[int], tokenizer: PreTrainedTokenizerBase, break_lines: bool = False) -> str:
    text = tokenizer.decode(input_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return "".join(escaped(character) + "\n" * (break_lines and character == "\n") for character in text)


def escaped(character: str) -> str:
    is_plain = character.isprintable() and character not in ("\\", *MARKS)
    return character if is_plain else character.encode("unicode_escape").decode()
