"""The text that --preview prints."""

import pytest
import torch
from tiny_tokenizer import MASK, make_tokenizer
from trainer_runs import arguments

from wedlm.training.preview import preview

TOKENIZER = make_tokenizer()
TEXT = [token for text in ("a", "\n", " the", "d") for token in TOKENIZER(text)["input_ids"]]
# One sample of two blocks; of the second, "d" is observed and " the" is masked.
BATCH = {
    "input_ids": [[*TEXT, TEXT[3], MASK]],
    "position_ids": [[0, 1, 2, 3, 3, 2]],
    "sample_ids": [[0, 0, 0, 0, 0, 0]],
    "stream_ids": [[0, 0, 0, 0, 1, 1]],
    "block_ids": [[0, 0, 1, 1, 1, 1]],
}
BATCH = {name: torch.tensor(values) for name, values in BATCH.items()}


def sample_of(*pieces):
    """A sample as prepare_dataset makes it, from pieces (text, has_loss)."""
    ids = [(token, loss) for text, loss in pieces for token in TOKENIZER(text)["input_ids"]]
    labels = [token if loss else -100 for token, loss in ids]
    tokens = [token for token, _ in ids]
    return {"input_ids": tokens, "labels": labels, "sample_lengths": [len(ids)], "sample_indices": [17]}


def test_the_samples_of_a_packed_sequence_and_a_masked_block_are_shown():
    first = sample_of(("<|im_start|>user\nthe cat", False), ("sat\non<|im_end|>", True))
    second = sample_of(("a", False), ("dog", True))
    lengths = [len(sample["input_ids"]) for sample in (first, second)]
    num_loss_tokens = [sum(label >= 0 for label in sample["labels"]) for sample in (first, second)]
    assert preview([{name: first[name] + second[name] for name in first}], TOKENIZER, BATCH) == (
        f"Sequence 0, sample 17: {lengths[0]} tokens, {num_loss_tokens[0]} with loss\n"
        "<|im_start|>user\\n\nthe cat⟦sat\\n\non<|im_end|>⟧\n\n"
        f"Sequence 0, sample 17: {lengths[1]} tokens, {num_loss_tokens[1]} with loss\n"
        "a⟦dog⟧\n\n"
        "Block 1 of sample 0 in the batch: the observed tokens first, then the masked ones, by position\n"
        "  observed  3 'd'\n"
        "  masked    2 ' the'\n"
    )


def test_a_block_has_its_number_among_those_of_the_text_if_it_is_masked_several_times():
    third_draw = {"block_ids": torch.tensor([[2, 2, 5, 5, 5, 5]])}  # of three
    assert preview([], TOKENIZER, BATCH | third_draw) == preview([], TOKENIZER, BATCH)


def test_nothing_in_the_data_acts_on_a_terminal():
    text = preview([sample_of(("\x1b[31m[red]⟦\u202e\\n\t\x00é", True))], TOKENIZER, BATCH)
    assert text.splitlines()[1] == "⟦\\x1b[31m[red]\\u27e6\\u202e\\\\n\\t\\x00é⟧"


@pytest.mark.parametrize("objective", ["dual_stream", "i-dlm", "draft"])
def test_a_batch_of_each_objective_is_shown(tmp_path, objective):
    collator = arguments(tmp_path, objective=objective).collator(MASK)
    sample = sample_of(("the cat", False), ("sat on the mat " * 9, True))
    assert "\n  masked    " in preview([], TOKENIZER, collator([sample]))
    assert preview([], TOKENIZER, collator([sample_of(("the", False))])) == "The batch has no masked token.\n"
