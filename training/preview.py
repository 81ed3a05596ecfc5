"""What training sees, as text to read: samples with their loss mask, and a masked block."""

from collections.abc import Mapping
from itertools import groupby, islice

import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

MARKS = "⟦", "⟧"
COLORS = "\x1b[32m", "\x1b[0m"  # green


def preview(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    batch: Mapping[str, torch.Tensor] | None = None,
    num_rows: int = 3,
    color: bool = False,
) -> str:
    """The first rows of a prepared dataset and, given a batch of the collator, one of its masked blocks.

    What has loss stands between ⟦ and ⟧, with `color` in green too. Special tokens are shown; control characters,
    backslashes and these marks in the data are escaped as in Python, so that nothing in the data can act on a
    terminal.

        Row 0, sample 17: 4 tokens, 3 with loss
        <|im_start|>⟦Hello<|im_end|>⟧
    """
    parts = []
    for number, row in enumerate(islice(dataset, num_rows)):
        start = 0
        for length, index in zip(row["sample_lengths"], row["sample_indices"], strict=True):
            input_ids, labels = row["input_ids"][start : start + length], row["labels"][start : start + length]
            num_loss_tokens = sum(label >= 0 for label in labels)
            parts.append(
                f"Row {number}, sample {index}: {length} tokens, {num_loss_tokens} with loss\n"
                + marked_text(input_ids, labels, tokenizer, color)
            )
            start += length
    if batch is not None:
        parts.append(masked_block(batch, tokenizer))
    return "\n\n".join(parts) + "\n"


def marked_text(input_ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, color: bool) -> str:
    opening, closing = (COLORS[0] + MARKS[0], MARKS[1] + COLORS[1]) if color else MARKS
    text = ""
    for has_loss, run in groupby(zip(input_ids, labels, strict=True), key=lambda pair: pair[1] >= 0):
        piece = shown([token for token, _ in run], tokenizer, break_lines=True)
        text += opening + piece + closing if has_loss else piece
    return text


def masked_block(batch: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase) -> str:
    """The first block with masked tokens, and with observed ones if there is such a block, in the order of its rows.

    Block 2 of sample 0 in the batch, gamma 0.50: the observed tokens first, then the masked ones, by position
      observed  64 'The'  66 ' sat'
      masked    65 ' cat'  67 '.'
    """
    has_target = batch["targets"] >= 0  # [batch, rows]
    blocks = {}
    for i, row in torch.nonzero((batch["stream_ids"] == 1) & (batch["sample_ids"] >= 0)).tolist():
        key = i, batch["sample_ids"][i, row].item(), batch["block_ids"][i, row].item()
        blocks.setdefault(key, []).append(row)
    with_masked = [(key, rows) for key, rows in blocks.items() if has_target[key[0], rows].any()]
    if not with_masked:
        return "The batch has no masked token."
    (i, sample, block), rows = next(
        (block for block in with_masked if not has_target[block[0][0], block[1]].all()), with_masked[0]
    )

    def places(name: str, masked: bool) -> str:
        chosen = [row for row in rows if has_target[i, row].item() == masked]
        return "  ".join(
            f"{batch['position_ids'][i, row].item()} '{shown([batch[name][i, row].item()], tokenizer)}'"
            for row in chosen
        )

    masked_row = next(row for row in rows if has_target[i, row])
    return (
        f"Block {block} of sample {sample} in the batch, gamma {batch['gammas'][i, masked_row].item():.2f}: "
        "the observed tokens first, then the masked ones, by position\n"
        f"  observed  {places('input_ids', False)}\n"
        f"  masked    {places('targets', True)}"
    )


def shown(input_ids: list[int], tokenizer: PreTrainedTokenizerBase, break_lines: bool = False) -> str:
    text = tokenizer.decode(input_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return "".join(escaped(character) + "\n" * (break_lines and character == "\n") for character in text)


def escaped(character: str) -> str:
    if character.isprintable() and character not in ("\\", *MARKS):
        return character
    return character.encode("unicode_escape").decode() if character not in MARKS else f"\\u{ord(character):04x}"
