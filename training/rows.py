"""Rows from files: what a row holds, and where it stands, for the errors that speak of it."""

import glob
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from pyarrow import parquet

from wedlm.training.errors import TrainingError

EXTENSIONS = (".jsonl", ".json", ".parquet")
NO_ROWS = "The data has no rows; give a file or a dataset with at least one."
FIELDS = ("messages", "prompt", "completion", "text", "tools")
# A row stays JSON text until it is tokenized: Arrow would give all rows one type and fill the gaps with nulls.
ROW_FEATURES = Features({"json_row": Value("large_string"), "where": Value("string"), "index": Value("int64")})

Paths = str | os.PathLike | Iterable[str | os.PathLike]


def load_rows(paths: Paths, streaming: bool = False) -> Dataset | IterableDataset:
    """The rows of one or more files, folders or patterns, numbered through in that order, not yet looked at.

    Folders and patterns stand for their .jsonl, .json and .parquet files in the order of their names. A .json file
    holds a list of rows or a row a line. With `streaming`, nothing is copied to the cache of datasets.

        load_rows("chats.jsonl")
        load_rows(["wiki/", "books-*.parquet"], streaming=True)
    """
    files = tuple(find_files(paths))
    if next(read_rows(files), None) is None:
        raise TrainingError(NO_ROWS)
    if streaming:
        return IterableDataset.from_generator(read_rows, features=ROW_FEATURES, gen_kwargs={"files": files})
    contents = []
    for file in files:
        with open(file, "rb") as stream:
            contents.append(hashlib.file_digest(stream, "sha256").hexdigest())
    fingerprint = Hasher.hash((files, contents, inspect.getsource(sys.modules[__name__])))
    try:
        return Dataset.from_generator(
            read_rows, features=ROW_FEATURES, gen_kwargs={"files": files}, fingerprint=fingerprint
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, TrainingError):
            raise error.__cause__ from None
        raise


def find_files(paths: Paths) -> list[str]:
    files = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(path)
        if os.path.isdir(name):
            found = sorted(str(file) for file in Path(name).iterdir() if file.suffix in EXTENSIONS)
            if not found:
                raise TrainingError(f"The folder {name} holds no {', '.join(EXTENSIONS)} file.")
        elif os.path.exists(name):
            found = [name]
        else:
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                raise TrainingError(f"There is no file {name}; give a path that exists.")
        files += found
    if not files:
        raise TrainingError("No data file is given; name at least one.")
    for file in files:
        if Path(file).suffix not in EXTENSIONS:
            raise TrainingError(f"{file} is of no known kind; the extension must be one of {', '.join(EXTENSIONS)}.")
        try:
            open(file, "rb").close()
        except OSError as error:
            raise TrainingError(f"{file} cannot be read: {error.strerror}.") from None
    return files


def read_rows(files: Iterable[str]) -> Iterator[dict]:
    index = 0
    for file in files:
        for json_row, place in READERS[Path(file).suffix](file):
            yield {"json_row": json_row, "where": f"{file}, {place}", "index": index}
            index += 1


def read_lines(file: str) -> Iterator[tuple[str, str]]:
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise TrainingError(f"{file}, line {number} is no UTF-8 text; save the file as UTF-8.") from None
            if text.strip():
                yield text, f"line {number}"


def read_json(file: str) -> Iterator[tuple[str, str]]:
    with open(file, "rb") as stream:
        is_list = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_list:
        yield from read_lines(file)
        return
    try:
        rows = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise TrainingError(f"{file} is no UTF-8 text; save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise TrainingError(f"{file}, line {error.lineno} is no JSON ({error.msg}).") from None
    for number, row in enumerate(rows):
        yield json.dumps(row), f"row {number}"


def read_parquet(file: str) -> Iterator[tuple[str, str]]:
    try:
        table = parquet.ParquetFile(file)
        columns = [name for name in table.schema_arrow.names if name in FIELDS]
        number = 0
        for batch in table.iter_batches(columns=columns):
            for row in batch.to_pylist() if columns else [{}] * batch.num_rows:
                yield json.dumps(without_nulls(row), default=repr), f"row {number}"
                number += 1
    except pyarrow.ArrowException as error:
        raise TrainingError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0].rstrip('.')}.") from None


READERS = {".jsonl": read_lines, ".json": read_json, ".parquet": read_parquet}


def without_nulls(value):
    """Takes out again what Arrow fills in where the rows of a column have different keys."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def fields_of(row: dict, index: int) -> tuple[dict, str, int]:
    """The fields of a row that training reads, where it stands, and its number among all rows."""
    if "json_row" not in row:
        return {name: without_nulls(row[name]) for name in FIELDS if row.get(name) is not None}, f"row {index}", index
    where = row["where"]
    try:
        content = json.loads(row["json_row"])
        json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise TrainingError(f"{where} is no JSON ({error.msg}, column {error.colno}).") from None
    except UnicodeEncodeError:
        raise TrainingError(f"{where} has half of a surrogate pair, which is no text; remove it.") from None
    if not isinstance(content, dict):
        raise TrainingError(f"{where} is a JSON {type(content).__name__}; a row must be an object with fields.")
    return {name: content[name] for name in FIELDS if content.get(name) is not None}, where, row["index"]
