"""Rows of text wherever they lie: files, folders, patterns, saved data sets, the Hugging Face Hub.

    notes.txt   plain text, one document           data.jsonl   one JSON object a line
    rows.json   a list of JSON objects             rows.parquet a table
    folder      all files below it in the order of their names, or what ``Dataset.save_to_disk`` wrote
    a/*.jsonl   the files that a pattern matches   hf:NAME      a data set of the Hub, hf:NAME:SUBSET one of its parts

``@SPLIT`` behind a saved data set or one of the Hub names its split: ``hf:NAME@train[:1000]``; ``train`` without.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.disk import hash_file
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
    return [source for name in ([names] if isinstance(names, str) else names) for source in _find(name, key)]


def held_out(count: int, share: float) -> list[bool]:
    """Say of each of ``count`` documents whether it is kept for evaluation: every n-th, whatever order they are in.

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
    if path.is_dir() and any((path / mark).is_file() for mark in ("dataset_dict.json", "dataset_info.json")):
        return [_saved_source(path, split, key)]
    if whole.is_dir():
        files = [file for file in sorted(whole.rglob("*")) if file.is_file() and not _hidden(file.relative_to(whole))]
    elif whole.is_file():
        files = [whole]
    else:
        files = [Path(file) for file in sorted(glob.glob(str(whole), recursive=True)) if Path(file).is_file()]
    if not files:
        empty = (
            "holds no file" if whole.is_dir() else "no such file, folder or match of a pattern; hf:NAME is on the Hub"
        )
        raise setting_error(key, name, empty)
    return [_file_source(file, key) for file in files]


def _path_and_split(name: str) -> tuple[Path, str]:
    path, at, split = name.rpartition("@")
    return (Path(path).expanduser(), split) if at else (Path(name).expanduser(), "train")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _file_source(path: Path, key: str) -> Source:
    return Source(name=str(path), digest=hash_file(path), read=lambda: _read_file(path, key))


def _read_file(path: Path, key: str) -> Iterator[tuple[str, Row]]:
    try:
        if path.suffix == ".parquet":
            yield from _read_parquet(path)
        elif path.suffix == ".jsonl":
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield f"{path}:{number}", _json(line, f"{path}:{number}", key)
        elif path.suffix == ".json":
            rows = _json(path.read_text(encoding="utf-8"), str(path), key, wanted=list)
            yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, 1))
        else:
            yield str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise setting_error(key, str(path), f"is no UTF-8 text (byte {error.start})") from None


def _json(text: str, origin: str, key: str, wanted: type = dict) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise setting_error(key, origin, f"is no JSON: {error}") from None
    if not isinstance(value, wanted):
        form = "an object with columns, {...}" if wanted is dict else "a list of objects, [{...}, ...]"
        raise setting_error(key, origin, f"must be {form}")
    return value


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    from pyarrow import parquet

    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=1000):
        for row in batch.to_pylist():
            number += 1
            yield f"{path} row {number}", row


def _saved_source(path: Path, split: str, key: str) -> Source:
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise setting_error(key, str(path), f"cannot be read: {first_line(error)}") from None
    if isinstance(found, DatasetDict):
        if split not in found:
            raise setting_error(key, str(path), f"has no split {split!r}; write {path}@{' or @'.join(found)}")
        found = found[split]
    digest = " ".join(hash_file(Path(part["filename"])) for part in found.cache_files)
    return Source(name=str(path), digest=digest, read=lambda: _rows_of(found, str(path)))


def _hub_source(name: str, key: str) -> Source:
    from datasets import load_dataset

    what, _, split = name.removeprefix("hf:").partition("@")
    path, _, subset = what.partition(":")
    try:
        found = load_dataset(path, subset or None, split=split or "train")
    except Exception as error:  # no such data set, subset or split, no network: each library has errors of its own
        raise setting_error(key, name, f"cannot be loaded: {first_line(error)}") from None
    return Source(name=name, digest=found._fingerprint, read=lambda: _rows_of(found, name))


def _rows_of(rows: Any, name: str) -> Iterator[tuple[str, Row]]:
    return ((f"{name} row {number}", row) for number, row in enumerate(rows, 1))
