"""Records from every kind of file and dataset."""

import json
import re

import pytest
from datasets import Dataset, IterableDataset
from tiny_tokenizer import make_tokenizer
from training_data import CHAT, TOKENIZER, assistant, prepare, user, write_lines

from wedlm.training import data_files
from wedlm.training.data_files import load_records
from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.run_errors import TrainingError

pytestmark = pytest.mark.usefixtures("datasets_cache")


SOURCE = [{"text": "the cat"}, {"text": "the dog sat"}, {"text": "log"}]


def as_jsonl(folder):
    return write_lines(folder / "a.jsonl", SOURCE)


def as_parquet(folder):
    Dataset.from_list([{**record, "id": 3.5} for record in SOURCE]).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_folder(folder):
    (folder / "notes.txt").write_text("no data")
    write_lines(folder / "a.jsonl", SOURCE[:1])
    (folder / "b.json").write_text(json.dumps(SOURCE[1:2]))
    write_lines(folder / "c.json", SOURCE[2:])
    return folder


def as_pattern(folder):
    as_folder(folder)
    return str(folder / "*.json*")


def as_dataset(folder):
    records = [{**record, "id": i, "prompt": None} for i, record in enumerate(SOURCE)]
    return Dataset.from_list(records).with_format("numpy")


def as_generator(folder):
    return IterableDataset.from_generator(lambda: iter(SOURCE))


FILES = [as_jsonl, as_parquet, as_folder, as_pattern]


@pytest.mark.parametrize(
    ("source", "streaming"),
    [*((file, False) for file in FILES), *((file, True) for file in FILES), (as_dataset, True), (as_generator, False)],
)
def test_every_source_gives_the_same_samples(tmp_path, source, streaming):
    options = {"max_length": 8, "packing": True}
    samples, _ = prepare_dataset(source(tmp_path), TOKENIZER, DataOptions(**options, streaming=streaming))
    is_streamed = source == as_generator or streaming and source != as_dataset
    assert isinstance(samples, IterableDataset if is_streamed else Dataset)
    expected, _ = prepare(SOURCE, **options)
    assert list(samples) == list(expected)
    assert list(samples) == list(expected)  # a second pass
    assert samples.column_names == ["input_ids", "labels", "sample_lengths", "sample_indices"]


def test_records_of_different_shapes_stand_in_one_file(tmp_path):
    """Arrow would need one type for all."""
    pairs = [{"prompt": CHAT[:1], "completion": CHAT[1:2]}, {"prompt": "a", "completion": "b"}]
    file = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}, {"text": "a"}, *pairs])
    kept, _ = prepare_dataset(file, TOKENIZER, DataOptions())
    assert [sample["sample_indices"] for sample in kept] == [[0], [1], [2], [3]]


def test_nothing_that_arrow_fills_in_reaches_the_template():
    calls = [[{"name": "log", "arguments": {"a": 1}}], [{"name": "log", "arguments": {"b": 2}}]]
    template = "{% for message in messages %}{{ message | tojson }}<|im_end|>{% endfor %}"
    records = [{"messages": [user("a"), assistant("b", tool_calls=call)]} for call in calls]
    tokenizer = make_tokenizer(template)
    kept, _ = prepare(records, tokenizer)
    assert all("null" not in tokenizer.decode(sample["input_ids"]) for sample in kept)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": \n',
            "{file}, line 2 is not JSON (Expecting value, column 1); correct it.",
        ),
        ("a.jsonl", b'{"text": "\xff"}\n', "{file}, line 1 is not UTF-8 text; save the file as UTF-8."),
        ("a.jsonl", b'["\\ud800"]', "{file}, line 1 has half of a surrogate pair, which is not text; remove it."),
        ("a.jsonl", b"\n", "There is no record in {file}; give a file with at least one."),
        ("a.json", b'[{"text": "a"},\n{"text": }]', "{file}, line 2 is not JSON (Expecting value); correct it."),
        ("a.json", b'[{"text": "\xff"}]', "{file} is not UTF-8 text; save the file as UTF-8."),
        ("a.json", b'[{"text": "a"}, 3]', "{file}, record 1 is a JSON int; write an object with fields."),
        ("a.parquet", b'{"text": "a"}', "{file} cannot be read as Parquet (Parquet magic bytes not found"),
        ("a.csv", b"text\na\n", "{file} has no extension of a data file; give a file that ends in one of .jsonl, "),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, sentence):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainingError, match=re.escape(sentence.format(file=file))):
        prepare_dataset(file, TOKENIZER, DataOptions())


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
def test_a_line_that_is_read_late_is_refused_in_the_same_words(tmp_path, monkeypatch, streaming):
    monkeypatch.setattr(data_files, "NUM_CHECKED", 1)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(TrainingError, match=f"^{file}, line 2 is not UTF-8 text; save the file as UTF-8.$"):
        list(prepare_dataset(file, TOKENIZER, DataOptions(streaming=streaming))[0])


@pytest.mark.parametrize(
    "dataset",
    [Dataset.from_list([]), Dataset.from_dict({"text": []}), IterableDataset.from_generator(lambda: iter(()))],
    ids=["no columns", "no records", "streamed"],
)
def test_a_dataset_without_records(dataset):
    with pytest.raises(TrainingError, match="^The data has no records; give a file or a dataset with at least one.$"):
        prepare_dataset(dataset, TOKENIZER, DataOptions())


def test_paths_that_are_refused(tmp_path):
    endings = "file that ends in one of .jsonl, .json, .parquet in"
    for paths, sentence in (
        ("none.jsonl", "There is no file none.jsonl; give a path that exists."),
        ([], "No data file is given; name at least one."),
        (tmp_path, f"There is no {endings} {tmp_path}; give a path that exists."),
    ):
        with pytest.raises(TrainingError, match=f"^{sentence}$"):
            load_records(paths, streaming=False)
