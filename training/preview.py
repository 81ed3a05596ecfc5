"""Prints training data as the model will see it: samples with their loss, and one masked block."""

from collections.abc import Mapping
from itertools import groupby, islice

import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from wedlm.training.dual_stream import PADDING, PREDICTION
from wedlm.training.target_loss import NO_TARGET

MARKS = "⟦", "⟧"
COLORS = "\x1b[32m", "\x1b[0m"  # green


def preview(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    batch: Mapping[str, torch.Tensor] | None = None,
    num_sequences: int = 3,
    color: bool = False,
) -> str:
    """Shows the first sequences of a prepared dataset and one masked block of a batch.

    Text with loss stands between ⟦ and ⟧. Special tokens are shown. Control characters, backslashes and these marks
    are escaped as in Python, so that nothing in the data can act on a terminal.

        Sequence 0, sample 17: 4 tokens, 3 with loss
        <|im_start|>⟦Hello<|im_end|>⟧

    Args:
        dataset (`Dataset` or `IterableDataset`): Data from `prepare_dataset`.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the data.
        batch (`Mapping[str, torch.Tensor]`, *optional*): A batch of the collator; without it no block is shown.
        num_sequences (`int`, *optional*, defaults to 3): How many sequences are shown.
        color (`bool`, *optional*, defaults to `False`): Whether text with loss is green.

    Returns:
        `str`: The text to print.
    """
    parts = []
    for number, sequence in enumerate(islice(dataset, num_sequences)):
        start = 0
        for length, index in zip(sequence["sample_lengths"], sequence["sample_indices"], strict=True):
            input_ids = sequence["input_ids"][start : start + length]
            labels = sequence["labels"][start : start + length]
            num_loss_tokens = sum(label != NO_TARGET for label in labels)
            parts.append(
                f"Sequence {number}, sample {index}: {length} tokens, {num_loss_tokens} with loss\n"
                + marked_text(input_ids, labels, tokenizer, color)
            )
            start += length
    if batch is not None:
        parts.append(masked_block(batch, tokenizer))
    return "\n\n".join(parts) + "\n"


def marked_text(input_ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, color: bool) -> str:
    opening, closing = (COLORS[0] + MARKS[0], MARKS[1] + COLORS[1]) if color else MARKS
    text = ""
    for has_loss, run in groupby(zip(input_ids, labels, strict=True), key=lambda pair: pair[1] != NO_TARGET):
        piece = shown([token for token, _ in run], tokenizer, break_lines=True)
        text += opening + piece + closing if has_loss else piece
    return text


def masked_block(batch: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase) -> str:
    """Shows the first block that has masked tokens, preferring one that has observed tokens as well.

    Block 2 of sample 0 in the batch, gamma 0.50: the observed tokens first, then the masked ones, by position
      observed  64 'The'  66 ' sat'
      masked    65 ' cat'  67 '.'
    """
    has_target = batch["targets"] != NO_TARGET  # [batch, queries]
    blocks = {}
    in_prediction = (batch["stream_ids"] == PREDICTION) & (batch["sample_ids"] != PADDING)
    for row, query in torch.nonzero(in_prediction).tolist():
        key = row, batch["sample_ids"][row, query].item(), batch["block_ids"][row, query].item()
        blocks.setdefault(key, []).append(query)
    with_masked = [(key, queries) for key, queries in blocks.items() if has_target[key[0], queries].any()]
    if not with_masked:
        return "The batch has no masked token."
    (row, sample, block), queries = next(
        (block for block in with_masked if not has_target[block[0][0], block[1]].all()), with_masked[0]
    )

    def tokens(name: str, is_masked: bool) -> str:
        return "  ".join(
            f"{batch['position_ids'][row, query].item()} '{shown([batch[name][row, query].item()], tokenizer)}'"
            for query in queries
            if has_target[row, query].item() == is_masked
        )

    masked_query = next(query for query in queries if has_target[row, query])
    return (
        f"Block {block} of sample {sample} in the batch, gamma {batch['gammas'][row, masked_query].item():.2f}: "
        "the observed tokens first, then the masked ones, by position\n"
        f"  observed  {tokens('input_ids', False)}\n"
        f"  masked    {tokens('targets', True)}"
    )


def shown(input_ids: list[int], tokenizer: PreTrainedTokenizerBase, break_lines: bool = False) -> str:
    text = tokenizer.decode(input_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return "".join(escaped(character) + "\n" * (break_lines and character == "\n") for character in text)


def escaped(character: str) -> str:
    if character.isprintable() and character not in ("\\", *MARKS):
        return character
    return character.encode("unicode_escape").decode() if character not in MARKS else f"\\u{ord(character):04x}"
