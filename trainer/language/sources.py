"""Rows of text wherever they lie: files, folders, patterns, saved data sets, the Hugging Face Hub.

    notes.txt     plain text, one document           rows.jsonl, .ndjson  one JSON object a line
    rows.json     a list of JSON objects, or lines   rows.csv, .tsv       a line of names, then a row a line
    rows.parquet  a table                            rows.jsonl.gz        any of them but parquet, packed
    folder        its data files in the order of their names (``folders.py``), or what ``Dataset.save_to_disk`` wrote
    a/*.jsonl     the files that a pattern matches
    hf:NAME       a data set of the Hub, hf:NAME:SUBSET one of its parts

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
from .folders import files_of_folder, kind_of
from .problems import first_line, setting_error

Row = str | Mapping[str, Any]  # plain text has no columns


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
    read: Callable[[], Iterator[tuple[str, Row]]]


def find_sources(names: str | Sequence[str], key: str) -> list[Source]:
    """List what the value of a setting names, in order.

    Args:
        key: of the setting, for messages.

    Raises:
        ConfigError: something does not exist or cannot be loaded.
    """
    return [
        source
        for name in ([names] if isinstance(names, str) else names)
        for source in _find(name, key)
    ]


def held_out(count: int, share: float) -> list[bool]:
    """Say of each of ``count`` documents whether it is kept for evaluation: every n-th, whatever
    order they are in.

    Raises:
        ConfigError: all are kept, or none.
    """
    kept = [int((at + 1) * share) > int(at * share) for at in range(count)]
    if not any(kept) or all(kept):
        rule = f"keeps {sum(kept)} of {count} documents; both parts must hold one"
        raise setting_error("evaluation", share, rule)
    return kept


def _find(name: str, key: str) -> list[Source]:
    if name.startswith("hf:"):
        return [_hub_source(name, key)]
    whole, path, split = Path(name).expanduser(), *_path_and_split(name)
    if path.is_dir() and any(
        (path / mark).is_file() for mark in ("dataset_dict.json", "dataset_info.json")
    ):
        return [_saved_source(path, split or "train", key)]
    if whole.is_dir():
        files = files_of_folder(whole, None, key)
    elif whole.is_file():
        files = [whole]
    elif path.is_dir() and split is not None:
        files = files_of_folder(path, split, key)
    else:
        files = [
            Path(file)
            for file in sorted(glob.glob(str(whole), recursive=True))
            if Path(file).is_file()
        ]
    if not files:
        raise setting_error(
            key, name, "no such file, folder or match of a pattern; hf:NAME is on the Hub"
        )
    return [_file_source(file, key) for file in files]


def _path_and_split(name: str) -> tuple[Path, str | None]:
    path, at, split = name.rpartition("@")
    return (Path(path).expanduser(), split) if at else (Path(name).expanduser(), None)


def _file_source(path: Path, key: str) -> Source:
    return Source(name=str(path), digest=hash_file(path), read=lambda: _read_file(path, key))


def _read_file(path: Path, key: str) -> Iterator[tuple[str, Row]]:
    kind = kind_of(path)
    try:
        if kind == ".parquet":
            yield from _read_parquet(path)
        elif kind in (".jsonl", ".ndjson"):
            with _open(path) as lines:
                yield from _read_lines(path, lines, key)
        elif kind == ".json":
            with _open(path) as file:
                yield from _read_json(path, file.read(), key)
        elif kind in (".csv", ".tsv"):
            with _open(path) as file:
                yield from _read_table(path, file, "," if kind == ".csv" else "\t", key)
        else:
            with _open(path) as file:
                yield str(path), file.read()
    except UnicodeDecodeError as error:
        rule = (
            f"is no UTF-8 text (byte {error.start}); .txt, .jsonl, .json, .csv, .tsv are read, each "
            "also as .gz, and .parquet"
        )
        raise setting_error(key, str(path), rule) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise setting_error(key, str(path), f"cannot be unpacked: {first_line(error)}") from None


def _open(path: Path) -> io.TextIOWrapper:
    """Open a text, packed or not, with the mark of UTF-8 in front or without."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return io.TextIOWrapper(opened(path, "rb"), encoding="utf-8-sig")


def _read_lines(path: Path, lines: Iterable[str], key: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", _json(line, f"{path}:{number}", key)


def _read_json(path: Path, text: str, key: str) -> Iterator[tuple[str, Row]]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        if not text.lstrip().startswith("{"):
            raise setting_error(key, str(path), f"is no JSON: {error}") from None
        yield from _read_lines(path, text.splitlines(), key)
        return
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise setting_error(
            key, str(path), "must be a list of objects, [{...}, ...], or one object a line"
        )
    yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, 1))


def _read_table(
    path: Path, file: Iterable[str], separator: str, key: str
) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(file, delimiter=separator, strict=True)
    try:
        for number, row in enumerate(rows, 1):
            if None in row or None in row.values():
                rule = f"has not the {len(rows.fieldnames or ())} columns of the first line"
                raise setting_error(key, f"{path} row {number}", rule)
            yield f"{path} row {number}", row
    except csv.Error as error:
        raise setting_error(key, str(path), f"is no table: {error}") from None


def _json(text: str, origin: str, key: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise setting_error(key, origin, f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise setting_error(key, origin, "must be an object with columns, {...}")
    return value


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    from pyarrow import parquet

    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            yield f"{path} row {number}", without_fillers(row)


def _saved_source(path: Path, split: str, key: str) -> Source:
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise setting_error(key, str(path), f"cannot be read: {first_line(error)}") from None
    if isinstance(found, DatasetDict):
        if split not in found:
            raise setting_error(
                key, str(path), f"has no split {split!r}; write {path}@{' or @'.join(found)}"
            )
        found = found[split]
    digest = " ".join(hash_file(Path(part["filename"])) for part in found.cache_files)
    return Source(name=str(path), digest=digest, read=lambda: _rows_of(found, str(path)))


def _hub_source(name: str, key: str) -> Source:
    from datasets import load_dataset

    what, _, split = name.removeprefix("hf:").partition("@")
    path, _, subset = what.partition(":")
    try:
        found = load_dataset(path, subset or None, split=split or "train")
    except (
        Exception
    ) as error:  # no such data set, subset or split, no network: each library has errors of its own
        raise setting_error(key, name, f"cannot be loaded: {first_line(error)}") from None
    return Source(name=name, digest=found._fingerprint, read=lambda: _rows_of(found, name))


def _rows_of(rows: Any, name: str) -> Iterator[tuple[str, Row]]:
    return ((f"{name} row {number}", without_fillers(row)) for number, row in enumerate(rows, 1))


def without_fillers(value: Any, *, inside: bool = False) -> Any:
    """Leave out what Arrow fills in: a key of one mapping in a column is there in all others,
    without a value.
    """
    if isinstance(value, Mapping):
        return {
            key: without_fillers(item, inside=True)
            for key, item in value.items()
            if item is not None or not inside
        }
    if isinstance(value, list):
        return [without_fillers(item, inside=True) for item in value]
    return value
