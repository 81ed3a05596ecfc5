"""Records from every kind of file and dataset."""

import json

import pytest
from datasets import Dataset, IterableDataset
from tiny_tokenizer import make_tokenizer
from training_data import CHAT, TOKENIZER, assistant, prepare, user, write_lines

from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions
from wedlm.training.errors import TrainingError
from wedlm.training.records import load_records

pytestmark = pytest.mark.usefixtures("datasets_cache")


SOURCE = [{"text": "the cat"}, {"text": "the dog sat"}, {"text": "log"}]


def as_jsonl(folder):
    return write_lines(folder / "a.jsonl", SOURCE)


def as_json_list(folder):
    (folder / "a.json").write_text(json.dumps(SOURCE, indent=1))
    return folder / "a.json"


def as_json_lines(folder):
    return write_lines(folder / "a.json", SOURCE)


def as_parquet(folder):
    Dataset.from_list([{**record, "id": 3.5} for record in SOURCE]).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_several(folder):
    return [write_lines(folder / "b.jsonl", SOURCE[:1]), write_lines(folder / "a.jsonl", SOURCE[1:])]


def as_folder(folder):
    (folder / "notes.txt").write_text("no data")
    write_lines(folder / "a.jsonl", SOURCE[:2])
    (folder / "b.json").write_text(json.dumps(SOURCE[2:]))
    return folder


def as_pattern(folder):
    as_folder(folder)
    return str(folder / "*.json*")


def as_dataset(folder):
    return Dataset.from_list(SOURCE)


def as_dataset_with_other_columns(folder):
    records = [{**record, "id": i, "prompt": None} for i, record in enumerate(SOURCE)]
    return Dataset.from_list(records).with_format("numpy")


def as_iterable(folder):
    return Dataset.from_list(SOURCE).to_iterable_dataset()


def as_generator(folder):
    return IterableDataset.from_generator(lambda: iter(SOURCE))


@pytest.mark.parametrize("packing", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
@pytest.mark.parametrize(
    "source",
    [
        as_jsonl,
        as_json_list,
        as_json_lines,
        as_parquet,
        as_several,
        as_folder,
        as_pattern,
        as_dataset,
        as_dataset_with_other_columns,
        as_iterable,
        as_generator,
    ],
)
@pytest.mark.full
def test_every_source_gives_the_same_samples(tmp_path, source, streaming, packing):
    options = DataOptions(max_length=8, packing=packing, streaming=streaming)
    samples, _ = prepare_dataset(source(tmp_path), TOKENIZER, options)
    is_streamed = source in (as_iterable, as_generator) or (
        streaming and source not in (as_dataset, as_dataset_with_other_columns)
    )
    assert isinstance(samples, IterableDataset if is_streamed else Dataset)
    expected, _ = prepare(SOURCE, max_length=8, packing=packing)
    assert list(samples) == list(expected)
    assert list(samples) == list(expected)  # a second pass
    assert samples.column_names == ["input_ids", "labels", "sample_lengths", "sample_indices"]


def test_records_of_different_shapes_stand_in_one_file(tmp_path):
    """Arrow would need one type for all."""
    records = [
        {"messages": CHAT},
        {"text": "a"},
        {"prompt": CHAT[:1], "completion": CHAT[1:2]},
        {"prompt": "a", "completion": "b"},
    ]
    file = write_lines(tmp_path / "a.jsonl", records)
    kept, _ = prepare_dataset(file, TOKENIZER, DataOptions())
    assert [sample["sample_indices"] for sample in kept] == [[0], [1], [2], [3]]


def test_nothing_that_arrow_fills_in_reaches_the_template():
    calls = [[{"name": "log", "arguments": {"a": 1}}], [{"name": "log", "arguments": {"b": 2}}]]
    template = "{% for message in messages %}{{ message | tojson }}<|im_end|>{% endfor %}"
    records = [{"messages": [user("a"), assistant("b", tool_calls=call)]} for call in calls]
    tokenizer = make_tokenizer(template)
    kept, _ = prepare(records, tokenizer)
    assert all("null" not in tokenizer.decode(sample["input_ids"]) for sample in kept)


def test_records_of_a_dataset_are_named_by_their_number():
    with pytest.raises(TrainingError, match="^record 1 has none of the fields"):
        prepare([{"text": "a"}, {"text": None}])
    with pytest.raises(TrainingError, match="^record 1 has none of the fields"):
        list(
            prepare_dataset(
                Dataset.from_list([{"text": "a"}, {"text": None}]).to_iterable_dataset(), TOKENIZER, DataOptions()
            )[0]
        )


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n',
         "{file}, line 2 is no JSON (Expecting value, column 1); correct it."),
        ("a.jsonl", b'{"text": "a"}\n3\n', "{file}, line 2 is a JSON int; write an object with fields."),
        ("a.jsonl", b'{"text": "\xff"}\n', "{file}, line 1 is no UTF-8 text; save the file as UTF-8."),
        ("a.jsonl", b'{"text": "\\ud8"}',
         "{file}, line 1 is no JSON (Invalid \\uXXXX escape, column 12); correct it."),
        ("a.jsonl", b'["\\ud800"]', "{file}, line 1 has half of a surrogate pair, which is no text; remove it."),
        ("a.jsonl", b"\n", "There is no record in {file}; give a file with at least one."),
        ("a.json", b"[]", "There is no record in {file}; give a file with at least one."),
        ("a.json", b'[{"text": "a"},\n{"text": }]', "{file}, line 2 is no JSON (Expecting value); correct it."),
        ("a.jsonl", b"[" * 10_000, "{file}, line 1 is nested too deeply for JSON; correct it."),
        ("a.json", b"[" * 10_000, "{file} is nested too deeply for JSON; correct it."),
        ("a.json", b'[{"text": "\xff"}]', "{file} is no UTF-8 text; save the file as UTF-8."),
        ("a.json", b'[{"text": "a"}, 3]', "{file}, record 1 is a JSON int; write an object with fields."),
        ("a.csv", b"text\na\n",
         "{file} has no extension of a data file; give a file that ends in one of .jsonl, .json, .parquet."),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, name, content, sentence, streaming):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainingError) as error:
        list(prepare_dataset(file, TOKENIZER, DataOptions(streaming=streaming))[0])
    assert str(error.value) == sentence.format(file=file)


@pytest.mark.parametrize(
    "dataset",
    [Dataset.from_list([]), Dataset.from_dict({"text": []}), IterableDataset.from_generator(lambda: iter(()))],
    ids=["no columns", "no records", "streamed"],
)
def test_a_dataset_without_records(dataset):
    with pytest.raises(TrainingError, match="^The data has no records; give a file or a dataset with at least one.$"):
        prepare_dataset(dataset, TOKENIZER, DataOptions())


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streamed"])
def test_a_file_that_is_no_parquet(tmp_path, streaming):
    (tmp_path / "a.parquet").write_text("{}")
    with pytest.raises(
        TrainingError, match=r"^\S*a.parquet cannot be read as Parquet \([^\n]*[^.]\); write it again\.$"
    ):
        list(prepare_dataset(tmp_path / "a.parquet", TOKENIZER, DataOptions(streaming=streaming))[0])


def test_paths_that_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for paths, sentence in (
        (tmp_path / "none.jsonl", f"There is no file {tmp_path}/none.jsonl; give a path that exists."),
        ([], "No data file is given; name at least one."),
        (
            str(tmp_path / "empty"),
            f"The folder {tmp_path}/empty holds no .jsonl, .json, .parquet file; give another folder.",
        ),
    ):
        with pytest.raises(TrainingError) as error:
            load_records(paths)
        assert str(error.value) == sentence


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", SOURCE)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(TrainingError) as error:
        load_records(file)
    assert str(error.value) == f"{file} cannot be read (Permission denied); give a file that can."
