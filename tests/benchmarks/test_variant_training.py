"""The variants train on whole blocks of the demo's samples, and the base on their clean tokens alone."""

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from examples.demo.tasks import example, split_of
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions


@pytest.fixture
def training(load_benchmark):
    return load_benchmark("variant_training")


def test_samples_are_those_of_training_filled_up_to_whole_blocks_with_end_tokens(training):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    questions = [example(training.KINDS[i % 2], "train", i) for i in range(12, 36)]
    assert all(split_of(one.kind, one.key) == "train" for one in questions)
    expected, _ = prepare_dataset(
        Dataset.from_list([{"messages": one.messages} for one in questions]), tokenizer, DataOptions()
    )
    end, found = tokenizer.eos_token_id, {}
    for row in training.training_rows(tokenizer, 5, 10):  # ten rows behind the first five, 2.4 questions each
        assert len(row["input_ids"]) == sum(row["sample_lengths"]) <= 192
        bounds = np.cumsum([0, *row["sample_lengths"]])
        for index, start, stop in zip(row["sample_indices"], bounds, bounds[1:], strict=False):
            found[index] = row["input_ids"][start:stop], row["labels"][start:stop]
    assert sorted(found) == list(range(12, 36))
    for index, plain in zip(sorted(found), expected, strict=True):
        tokens, labels = found[index]
        num_more = len(tokens) - len(plain["input_ids"])
        assert len(tokens) % 32 == 0 and 0 <= num_more < 32
        assert tokens == plain["input_ids"] + num_more * [end] and labels == plain["labels"] + num_more * [end]


def test_the_base_learns_from_the_clean_tokens_alone(training):
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "sample_lengths": [3], "sample_indices": [0]}
    batch = training.MemoryCollator(mask_token_id=9)([row])
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7]],
        "position_ids": [[0, 1, 2]],
        "sample_ids": [[0, 0, 0]],
        "stream_ids": [[0, 0, 0]],
        "block_ids": [[0, 0, 0]],
        "targets": [[6, 7, -100]],
        "target_weights": [[1, 1, 0]],
        "gammas": [[0, 0, 0]],
    }
