"""The text that --preview prints."""

import torch
from datasets import Dataset
from tiny_tokenizer import MASK, make_tokenizer

from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions
from wedlm.training.preview import preview

TOKENIZER = make_tokenizer()


def samples_of(*texts):
    """Samples as prepare_dataset makes them, each from pieces (text, has_loss)."""
    samples = []
    for index, pieces in enumerate(texts):
        ids = [(token, loss) for text, loss in pieces for token in TOKENIZER(text)["input_ids"]]
        samples.append(
            {
                "input_ids": [token for token, _ in ids],
                "labels": [token if loss else -100 for token, loss in ids],
                "sample_lengths": [len(ids)],
                "sample_indices": [17 + index],
            }
        )
    return samples


def test_the_loss_mask_is_shown():
    samples = samples_of([("<|im_start|>user\nthe cat", False), ("sat\non<|im_end|>", True)], [("dog", True)])
    num_tokens = len(samples[0]["input_ids"])
    num_loss_tokens = sum(label >= 0 for label in samples[0]["labels"])
    assert preview(samples, TOKENIZER, num_sequences=1) == (
        f"Sequence 0, sample 17: {num_tokens} tokens, {num_loss_tokens} with loss\n"
        "<|im_start|>user\\n\nthe cat⟦sat\\n\non<|im_end|>⟧\n"
    )
    colored = preview(samples, TOKENIZER, num_sequences=1, color=True)
    assert "the cat\x1b[32m⟦sat\\n\non<|im_end|>⟧\x1b[0m\n" in colored


def test_samples_of_a_packed_sequence_are_shown_one_by_one():
    first, second = samples_of([("the cat", True)], [("a", False), ("dog", True)])
    packed = {name: first[name] + second[name] for name in first}
    apart = preview([first, second], TOKENIZER)
    assert preview([packed], TOKENIZER) == apart.replace("Sequence 1", "Sequence 0")
    assert "sample 18: " in apart and apart.endswith("\na⟦dog⟧\n")


def test_nothing_in_the_data_acts_on_a_terminal():
    (sample,) = samples_of([("\x1b[31m[red]⟦\u202e\\n\t\x00é", True)])
    text = preview([sample], TOKENIZER)
    assert text.splitlines()[1] == "⟦\\x1b[31m[red]\\u27e6\\u202e\\\\n\\t\\x00é⟧"


def test_a_prepared_dataset_is_shown():
    dataset, _ = prepare_dataset(
        Dataset.from_list([{"prompt": "the", "completion": " cat"}]), TOKENIZER, DataOptions()
    )
    assert preview(dataset, TOKENIZER).endswith(" with loss\nthe⟦ cat<|endoftext|>⟧\n")


def token(text):
    (only,) = TOKENIZER(text)["input_ids"]
    return only


# Two samples, blocks of 3. Row 1: block 0 of sample 0 is all masked, block 1 is observed at 4 and masked at 3 and 5.
A, B, C, D, E, F = map(token, ["a", "\n", "c", "d", " the", "f"])
BATCH = {
    "input_ids": [[A, B, A, B, 0, 0], [A, B, MASK, MASK, E, MASK]],
    "position_ids": [[0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 4, 3]],
    "sample_ids": [[0, 0, 0, 0, -1, -1], [0, 0, 0, 0, 1, 1]],
    "stream_ids": [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]],
    "block_ids": [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]],
    "targets": [[-100] * 6, [-100, -100, A, B, -100, D]],
    "gammas": [[0.0] * 6, [0.0, 0.0, 1.0, 1.0, 0.5, 0.5]],
}
BATCH = {name: torch.tensor(values) for name, values in BATCH.items()}


def test_a_masked_block_is_shown():
    assert preview([], TOKENIZER, BATCH) == (
        "Block 1 of sample 1 in the batch, gamma 0.50: the observed tokens first, then the masked ones, by position\n"
        "  observed  4 ' the'\n"
        "  masked    3 'd'\n"
    )
    only_masked = {name: values[:, :4] for name, values in BATCH.items()}
    assert preview([], TOKENIZER, only_masked) == (
        "Block 0 of sample 0 in the batch, gamma 1.00: the observed tokens first, then the masked ones, by position\n"
        "  observed  \n"
        "  masked    0 'a'  1 '\\n'\n"
    )
    no_masked = {name: values[:1] for name, values in BATCH.items()}
    assert preview([], TOKENIZER, no_masked) == "The batch has no masked token.\n"
