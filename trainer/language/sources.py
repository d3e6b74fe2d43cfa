"""Rows of text from files, folders, patterns, saved data sets and the Hugging Face Hub.

    notes.txt            plain text, one document
    rows.jsonl, .ndjson  one JSON object a line
    rows.json            a list of JSON objects, or one object a line
    rows.csv, .tsv       a line of names, then a row a line
    rows.parquet         a table
    rows.jsonl.gz        any of these but parquet, compressed
    folder               its data files in the order of their names (``folders.py``), or what
                         ``Dataset.save_to_disk`` wrote
    a/*.jsonl            the files that a pattern matches
    hf:NAME              a data set of the Hub, hf:NAME:SUBSET one of its parts

``@SPLIT`` behind a folder, a saved data set or one of the Hub names its split,
``hf:NAME@train[:1000]``; without it ``train``.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.disk import hash_file
from ..private.datasets import fingerprint
from .folders import files_of_folder, kind_of
from .problems import first_line, setting_error

Row = str | Mapping[str, Any]  # plain text has no columns
Rows = Iterator[tuple[str, Row]]  # each with its origin: the file, and its line or number


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file or a data set.

    Args:
        name: for messages.
        digest: changes with the content.
        read: yields each row with its origin.
    """

    name: str
    digest: str
    read: Callable[[], Rows]


def find_sources(names: str | Sequence[str], key: str) -> list[Source]:
    """List the files and data sets that a setting names, in order.

    Args:
        names: value of the setting.
        key: of the setting, for messages.

    Raises:
        ConfigError: something does not exist or cannot be loaded.
    """
    if isinstance(names, str):
        names = [names]

    sources = []
    for name in names:
        sources += _find(name, key)
    return sources


def held_out(count: int, share: float) -> list[bool]:
    """Return whether each of ``count`` documents is kept for evaluation: every n-th one is.

    Args:
        share: to be kept, between 0 and 1.

    Raises:
        ConfigError: all are kept, or none.
    """
    kept = [int((number + 1) * share) > int(number * share) for number in range(count)]
    if not any(kept) or all(kept):
        rule = f"keeps {sum(kept)} of {count} documents; both parts must hold one"
        raise setting_error("evaluation", share, rule)
    return kept


def _find(name: str, key: str) -> list[Source]:
    if name.startswith("hf:"):
        return [_hub_source(name, key)]

    path, split = _path_and_split(name)
    saved_by_datasets = ("dataset_dict.json", "dataset_info.json")
    if path.is_dir() and any((path / file).is_file() for file in saved_by_datasets):
        return [_saved_source(path, split or "train", key)]

    files = _files(name, key)
    if not files:
        rule = "no such file, folder or match of a pattern; hf:NAME is on the Hub"
        raise setting_error(key, name, rule)
    return [_file_source(file, key) for file in files]


def _files(name: str, key: str) -> list[Path]:
    """Return the files that a name refers to."""
    # A path may hold an @ itself.
    whole = Path(name).expanduser()
    if whole.is_dir():
        return files_of_folder(whole, None, key)
    if whole.is_file():
        return [whole]

    path, split = _path_and_split(name)
    if path.is_dir() and split is not None:
        return files_of_folder(path, split, key)

    matches = [Path(match) for match in sorted(glob.glob(str(whole), recursive=True))]
    return [path for path in matches if path.is_file()]


def _path_and_split(name: str) -> tuple[Path, str | None]:
    path, at, split = name.rpartition("@")
    if not at:
        return Path(name).expanduser(), None
    return Path(path).expanduser(), split


# -- files ----------------------------------------------------------------------------------------


def _file_source(path: Path, key: str) -> Source:
    return Source(name=str(path), digest=hash_file(path), read=lambda: _read_file(path, key))


def _read_file(path: Path, key: str) -> Rows:
    """Yield the rows of a file, each with its origin.

    Raises:
        ConfigError: the file is not what its suffix says.
    """
    kind = kind_of(path)
    try:
        if kind == ".parquet":
            yield from _read_parquet(path)
            return

        with _open(path) as file:
            if kind in (".jsonl", ".ndjson"):
                yield from _read_lines(path, file, key)
            elif kind == ".json":
                yield from _read_json(path, file.read(), key)
            elif kind == ".csv":
                yield from _read_table(path, file, ",", key)
            elif kind == ".tsv":
                yield from _read_table(path, file, "\t", key)
            else:
                yield str(path), file.read()
    except UnicodeDecodeError as error:
        rule = (
            f"is no UTF-8 text (byte {error.start}); .txt, .jsonl, .json, .csv, .tsv are read, "
            "each also as .gz, and .parquet"
        )
        raise setting_error(key, str(path), rule) from None
    except (gzip.BadGzipFile, EOFError) as error:
        rule = f"cannot be decompressed: {first_line(error)}"
        raise setting_error(key, str(path), rule) from None


def _open(path: Path) -> io.TextIOWrapper:
    """Open a text, compressed or not, with a byte order mark or without."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return io.TextIOWrapper(opened(path, "rb"), encoding="utf-8-sig")


def _read_lines(path: Path, lines: Iterable[str], key: str) -> Rows:
    for number, line in enumerate(lines, 1):
        if line.strip():
            origin = f"{path}:{number}"
            yield origin, _read_object(line, origin, key)


def _read_object(text: str, origin: str, key: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise setting_error(key, origin, f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise setting_error(key, origin, "must be an object with columns, {...}")
    return value


def _read_json(path: Path, text: str, key: str) -> Rows:
    try:
        rows = json.loads(text)
    except ValueError as error:
        if not text.lstrip().startswith("{"):
            raise setting_error(key, str(path), f"is no JSON: {error}") from None
        yield from _read_lines(path, text.splitlines(), key)
        return

    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        rule = "must be a list of objects, [{...}, ...], or one object a line"
        raise setting_error(key, str(path), rule)
    for number, row in enumerate(rows, 1):
        yield f"{path} row {number}", row


def _read_table(path: Path, file: Iterable[str], separator: str, key: str) -> Rows:
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(file, delimiter=separator, strict=True)
    try:
        for number, row in enumerate(rows, 1):
            origin = f"{path} row {number}"
            if None in row or None in row.values():
                count = len(rows.fieldnames or ())
                rule = f"does not have the {count} columns of the first line"
                raise setting_error(key, origin, rule)
            yield origin, row
    except csv.Error as error:
        raise setting_error(key, str(path), f"is no table: {error}") from None


def _read_parquet(path: Path) -> Rows:
    from pyarrow import parquet

    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            yield f"{path} row {number}", _without_null_keys(row)


# -- data sets ------------------------------------------------------------------------------------


def _saved_source(path: Path, split: str, key: str) -> Source:
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise setting_error(key, str(path), f"cannot be read: {first_line(error)}") from None

    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            rule = f"has no split {split!r}; write {path}@{' or @'.join(dataset)}"
            raise setting_error(key, str(path), rule)
        dataset = dataset[split]

    digest = " ".join(hash_file(Path(part["filename"])) for part in dataset.cache_files)
    return Source(name=str(path), digest=digest, read=lambda: _rows_of(dataset, str(path)))


def _hub_source(name: str, key: str) -> Source:
    from datasets import load_dataset

    path_and_subset, _, split = name.removeprefix("hf:").partition("@")
    path, _, subset = path_and_subset.partition(":")
    try:
        dataset = load_dataset(path, subset or None, split=split or "train")
    except Exception as error:  # no such name or no network: each library raises its own
        raise setting_error(key, name, f"cannot be loaded: {first_line(error)}") from None
    return Source(name=name, digest=fingerprint(dataset), read=lambda: _rows_of(dataset, name))


def _rows_of(dataset: Any, name: str) -> Rows:
    for number, row in enumerate(dataset, 1):
        yield f"{name} row {number}", _without_null_keys(row)


def _without_null_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the keys that Arrow adds to mappings inside of its columns.

    All mappings of a column have the same keys there; those that a mapping lacked are null. A
    column of the row itself may be null.
    """
    return {column: _without_nulls(value) for column, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
