"""Reads records, the examples of training data before they are tokenized, from files and datasets."""

import glob
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from pyarrow import parquet

from wedlm.training.run_errors import TrainingError

EXTENSIONS = (".jsonl", ".json", ".parquet")
NO_RECORDS = "The data has no records; give a file or a dataset with at least one."
TOO_DEEP = "nested too deeply; flatten or remove it"
NUM_CHECKED = 1000  # records that are read before anything else is done
FIELDS = ("messages", "prompt", "completion", "text", "tools")
# A record of a file stays JSON text until it is tokenized. Arrow would give all records one type, and fill the gaps
# with nulls.
RECORD_FEATURES = Features({"json_record": Value("large_string"), "where": Value("string"), "index": Value("int64")})

Paths = str | os.PathLike | Iterable[str | os.PathLike]


class Record(NamedTuple):
    """An example of training data before it is tokenized."""

    fields: dict[str, Any]  # those of FIELDS that it has
    where: str  # its place, such as a file and a line, for error messages
    number: int  # in the data, from 0 on


# --- Files ---


def load_records(paths: Paths, streaming: bool) -> Dataset | IterableDataset:
    """Reads the records of files, folders or patterns and numbers them, without parsing their fields.

    A folder or pattern stands for its .jsonl, .json and .parquet files, in the order of their names. A .json file
    holds a list of records, or one record per line. With `streaming` nothing is copied into the cache of datasets.
    """
    files = check_data(paths)
    if streaming:
        return IterableDataset.from_generator(read_records, features=RECORD_FEATURES, gen_kwargs={"files": files})
    contents = []
    for file in files:
        with open(file, "rb") as stream:
            contents.append(hashlib.file_digest(stream, "sha256").hexdigest())
    fingerprint = Hasher.hash((files, contents, inspect.getsource(sys.modules[__name__])))
    try:
        return Dataset.from_generator(
            read_records, features=RECORD_FEATURES, gen_kwargs={"files": files}, fingerprint=fingerprint
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, TrainingError):
            raise error.__cause__ from None
        raise


def check_data(paths: Paths) -> tuple[str, ...]:
    """Returns the files, and refuses what cannot be read, data without a record and a broken one near the start."""
    files = tuple(find_files(paths))
    records = [parse_record(record, record["index"]) for record in islice(read_records(files), NUM_CHECKED)]
    if not records:
        raise TrainingError(f"There is no record in {', '.join(files)}; give a file with at least one.")
    return files


def find_files(paths: Paths) -> list[str]:
    files = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(path)
        if os.path.isdir(name):
            found = sorted(str(file) for file in Path(name).iterdir() if file.suffix in EXTENSIONS)
        else:
            found = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
        if not found:
            kind = f"file that ends in one of {', '.join(EXTENSIONS)} in" if os.path.isdir(name) else "file"
            raise TrainingError(f"There is no {kind} {name}; give a path that exists.")
        files += found
    if not files:
        raise TrainingError("No data file is given; name at least one.")
    for file in files:
        if Path(file).suffix not in EXTENSIONS:
            raise TrainingError(
                f"{file} has no extension of a data file; give a file that ends in one of {', '.join(EXTENSIONS)}."
            )
    return files


def read_records(files: Iterable[str]) -> Iterator[dict]:
    index = 0
    for file in files:
        for json_record, position in READERS[Path(file).suffix](file):
            yield {"json_record": json_record, "where": f"{file}, {position}", "index": index}
            index += 1


def read_lines(file: str) -> Iterator[tuple[str, str]]:
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise TrainingError(f"{file}, line {number} is not UTF-8 text; save the file as UTF-8.") from None
            if text.strip():
                yield text, f"line {number}"


def read_json(file: str) -> Iterator[tuple[str, str]]:
    with open(file, "rb") as stream:
        is_list = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_list:
        yield from read_lines(file)
        return
    try:
        records = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise TrainingError(f"{file} is not UTF-8 text; save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise TrainingError(f"{file}, line {error.lineno} is not JSON ({error.msg}); correct it.") from None
    except RecursionError:
        raise TrainingError(f"{file} has a record that is {TOO_DEEP}.") from None
    for number, record in enumerate(records):
        yield json.dumps(record), f"record {number}"


def read_parquet(file: str) -> Iterator[tuple[str, str]]:
    try:
        table = parquet.ParquetFile(file)
        columns = [name for name in table.schema_arrow.names if name in FIELDS]
        number = 0
        for batch in table.iter_batches(columns=columns):
            for record in batch.to_pylist() if columns else [{}] * batch.num_rows:
                yield json.dumps(without_nulls(record), default=repr), f"record {number}"
                number += 1
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise TrainingError(f"{file} cannot be read as Parquet ({reason}); write it again.") from None


READERS = {".jsonl": read_lines, ".json": read_json, ".parquet": read_parquet}


# --- Fields ---


def parse_record(columns: dict, index: int) -> Record:
    """Reads the fields of a record."""
    if "json_record" not in columns:
        fields = {name: without_nulls(columns[name]) for name in FIELDS if columns.get(name) is not None}
        return Record(fields, f"record {index}", index)
    where = columns["where"]
    try:
        content = json.loads(columns["json_record"])
        json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise TrainingError(f"{where} is not JSON ({error.msg}, column {error.colno}); correct it.") from None
    except RecursionError:
        raise TrainingError(f"{where} is {TOO_DEEP}.") from None
    except UnicodeEncodeError:
        raise TrainingError(f"{where} has half of a surrogate pair, which is not text; remove it.") from None
    if not isinstance(content, dict):
        raise TrainingError(f"{where} is a JSON {type(content).__name__}; write an object with fields.")
    fields = {name: content[name] for name in FIELDS if content.get(name) is not None}
    return Record(fields, where, columns["index"])


def without_nulls(value: Any) -> Any:
    """Removes the nulls that Arrow fills in where the records of a column have different keys."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
