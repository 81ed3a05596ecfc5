"""prepare_dataset as a whole: the summary, numbers of samples, streamed datasets and caches."""

import re

import pytest
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tiers import property_settings
from tiny_tokenizer import QWEN25, make_tokenizer
from torch.utils.data import DataLoader
from training_data import CHAT, TOKENIZER, prepare, user, write_lines

from wedlm.training import dataset as dataset_module
from wedlm.training import tokenization
from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET

pytestmark = pytest.mark.usefixtures("datasets_cache")


@property_settings(20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.booleans(), st.sampled_from(["truncate", "drop"]))
def test_every_token_is_in_a_sequence_or_its_sample_is_counted(num_words, packing, overlong):
    """Nothing is cut silently: sequences hold each sample whole, except for those that the summary counts."""
    records = [{"text": "the cat " * n} for n in num_words] + [{"text": "the"}]
    whole = {sequence["sample_indices"][0]: sequence["input_ids"] for sequence in prepare(records)[0]}
    is_long = {index: len(tokens) > 16 for index, tokens in whole.items()}
    sequences, summary = prepare(records, max_length=16, packing=packing, overlong=overlong)
    found = {}
    for sequence in sequences:
        start = 0
        for length, index in zip(sequence["sample_lengths"], sequence["sample_indices"], strict=True):
            assert index not in found
            found[index] = sequence["input_ids"][start : start + length]
            start += length
        assert start == len(sequence["input_ids"]) == len(sequence["labels"]) <= 16
    num_long = sum(is_long.values())
    if overlong == "truncate":
        assert found == {index: tokens[:16] for index, tokens in whole.items()}
        assert summary.num_truncated == num_long and not summary.dropped
    else:
        assert found == {index: tokens for index, tokens in whole.items() if not is_long[index]}
        assert summary.num_truncated == 0 and sum(summary.dropped.values()) == num_long
    assert summary.num_read == len(records)


MIXED = [
    {"text": "the cat sat"},
    {"text": "the dog " * 30},
    {"text": " \n"},
    {"prompt": "the " * 40, "completion": "cat"},
    {"text": "<|mask|>"},
    {"text": "the log"},
]


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
def test_the_summary_counts_everything(tmp_path, streaming):
    file = write_lines(tmp_path / "mixed.jsonl", MIXED)
    sequences, summary = prepare_dataset(
        str(file), TOKENIZER, DataOptions(max_length=16, packing=True, streaming=streaming)
    )
    sequences = list(sequences)
    num_tokens = sum(len(sequence["input_ids"]) for sequence in sequences)
    num_loss_tokens = sum(label != NO_TARGET for sequence in sequences for label in sequence["labels"])
    assert str(summary) == (
        f"6 records read, 3 samples: {num_tokens} tokens, {num_loss_tokens} of them with loss.\n"
        "Truncated to max_length=16: 1 samples.\n"
        "Dropped: 1 (blank text).\n"
        "Dropped: 1 (cut before the first token with loss).\n"
        "Dropped: 1 (the MASK token in the data).\n"
        f"Packed into {len(sequences)} sequences, {num_tokens / (16 * len(sequences)):.1%} full."
    )
    assert sorted(index for sequence in sequences for index in sequence["sample_indices"]) == [0, 1, 5]


@pytest.mark.full
def test_several_processes_give_the_same_sequences(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [{"text": "the cat " * count} for count in range(1, 9)])
    one, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=16, packing=True))
    two, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=16, packing=True, num_proc=2))
    assert list(one) == list(two)
    write_lines(file, [{"text": "a"}, {"text": "b"}, {"txt": "c"}, {"text": "d"}])
    with pytest.raises(TrainingError, match=re.escape(f"{file}, line 3 has none of the fields")):
        prepare_dataset(file, TOKENIZER, DataOptions(num_proc=2))


def test_a_streamed_dataset_reads_no_more_than_it_must():
    num_read = 0

    def endless():
        nonlocal num_read
        while True:
            num_read += 1
            yield {"text": "the cat"}

    samples, summary = prepare_dataset(
        IterableDataset.from_generator(endless), TOKENIZER, DataOptions(max_length=8, packing=True)
    )
    assert num_read < 10
    next(iter(samples))
    assert num_read <= 2 * dataset_module.PACKING_BUFFER
    assert summary.num_read >= dataset_module.PACKING_BUFFER


def test_a_streamed_dataset_is_shuffled_and_read_by_workers(tmp_path):
    files = [
        write_lines(tmp_path / f"{name}.jsonl", [{"text": f"the cat {name} {i}"} for i in range(20)]) for name in "ab"
    ]
    samples, summary = prepare_dataset(files, TOKENIZER, DataOptions(max_length=16, streaming=True))
    in_order = list(samples)
    assert [sample["sample_indices"] for sample in in_order] == [[i] for i in range(40)]
    shuffled = list(samples.shuffle(seed=1, buffer_size=10))
    assert summary.num_read == 80  # both passes
    loaded = list(DataLoader(samples, num_workers=2, batch_size=None))
    assert shuffled != in_order
    for others in (shuffled, loaded):
        assert sorted(others, key=lambda sample: sample["sample_indices"]) == in_order
    state = iter(samples)
    half = [next(state) for _ in range(15)]
    resumed = prepare_dataset(files, TOKENIZER, DataOptions(max_length=16, streaming=True))[0].skip(15)
    assert half + list(resumed) == in_order


def test_the_number_of_a_streamed_record_depends_on_no_worker_and_no_rank():
    source = Dataset.from_list([{"text": f"the cat {i}"} for i in range(10)]).to_iterable_dataset(num_shards=2)
    samples, _ = prepare_dataset(source, TOKENIZER, DataOptions(max_length=16))
    numbers = {tuple(sample["input_ids"]): sample["sample_indices"] for sample in samples}
    assert sorted(numbers.values()) == [[i] for i in range(10)]
    by_rank = [sample for rank in range(2) for sample in split_dataset_by_node(samples, rank, 2)]
    by_worker = list(DataLoader(samples, num_workers=2, batch_size=None))
    for others in (by_rank, by_worker):
        assert len(others) == 10
        assert {tuple(sample["input_ids"]): sample["sample_indices"] for sample in others} == numbers


def test_what_was_tokenized_before_is_found_again(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])
    options = DataOptions(packing=True)
    before, _ = prepare_dataset(file, TOKENIZER, options)
    TOKENIZER(["a", "a b"], padding=True)  # leaves its padding in the tokenizer's state
    monkeypatch.setattr(tokenization, "tokens_of", None)  # would fail if it were called
    for tokenizer in (TOKENIZER, make_tokenizer()):
        again, _ = prepare_dataset(file, tokenizer, options)
        assert again._fingerprint == before._fingerprint and list(again) == list(before)


def test_a_change_of_template_tokenizer_option_or_data_is_never_missed(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])

    def prepared(tokenizer, **options):
        return list(prepare_dataset(file, tokenizer, DataOptions(packing=True, **options))[0])

    other_template, other_end, other_tokens = (make_tokenizer() for _ in range(3))
    other_template.chat_template = QWEN25.replace("the dog", "the cat")
    other_end.eos_token = "<|im_start|>"
    other_tokens.add_tokens(["cat"])
    found = [
        prepared(TOKENIZER),
        prepared(other_template),
        prepared(other_tokens),
        *(prepared(TOKENIZER, **options) for options in ({"loss_on": "last"}, {"max_length": 30})),
        *(prepared(tokenizer, extra_end_tokens=1) for tokenizer in (TOKENIZER, other_end)),
    ]
    write_lines(file, [{"messages": [user("the dog"), *CHAT[1:]]}])
    found.append(prepared(TOKENIZER))
    assert all(found[i] != found[j] for i in range(len(found)) for j in range(i))
    write_lines(file, [{"messages": CHAT}])
    assert prepared(TOKENIZER) == found[0]


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
def test_a_dataset_that_is_empty_after_filtering(streaming):
    records = Dataset.from_dict({"text": ["the cat sat", "a <|mask|>", " "]})
    if streaming:
        records = records.to_iterable_dataset()
    dropped = "1 for blank text, 1 for longer than max_length, 1 for the MASK token in the data"
    with pytest.raises(
        TrainingError, match=rf"No sample is left of 3 records \(dropped: {dropped}\); change the data"
    ):
        prepare_dataset(records, TOKENIZER, DataOptions(max_length=2, overlong="drop"))


def test_tokenizers_that_are_refused():
    for tokenizer, sentence in (
        (make_tokenizer(eos_token=None), "The tokenizer has no end token; set tokenizer.eos_token"),
        (make_tokenizer(None), "record 0 has messages, but the tokenizer has no chat template; set .*, or give"),
    ):
        with pytest.raises(TrainingError, match=sentence):
            prepare([{"messages": CHAT}], tokenizer)
