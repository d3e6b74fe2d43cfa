"""Rows of text from files, folders, patterns and the Hugging Face Hub, read by ``load_dataset``.

    rows.jsonl, .ndjson, .json                          a row a line, or a list of rows
    .csv, .tsv, .parquet                                rows. All of these also packed as .gz
    notes.txt and any other file                        a text, as a single row
    a/*.jsonl                                           the files of one kind that match
    folder                                              as datasets reads or has saved it
    hf:NAME, hf:NAME:SUBSET                             a data set of the Hub

``@SPLIT`` behind a folder or a name of the Hub names a split: ``hf:NAME@test``. By default the
split is ``train``, and files have no other. ``@train[:1000]`` takes a part of the rows.

JSON files are read by ``json``. ``load_dataset`` takes a type for each column from the first 10 MB,
and for a list none: other values become JSON code, quotes included, and dates become times.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec

from ..checkpoint.disk import hash_file
from ..private.datasets import fingerprint
from ..text import several
from .problems import first_line, setting_error

Row = Mapping[str, Any]

# By suffix: the builder of load_dataset, and its options.
JSON: tuple[str, dict[str, Any]] = ("json", {})
AS_TEXT = ("text", {"sample_by": "document"})
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), JSON),
    ".csv": ("csv", {"keep_default_na": False}),  # the text "NA" is a text
    ".tsv": ("csv", {"keep_default_na": False, "sep": "\t"}),
    ".parquet": ("parquet", {}),
}
NAME = re.compile(
    r"(?:hf:([^:@]+)(?::([^@]+))?|(.+?))(?:@([\w+-]+)(?:\[(\d*):(\d*)\])?)?", re.DOTALL
)


@dataclass(frozen=True)
class JsonRows:
    """Rows of JSON files, as they are written."""

    files: Sequence[str]

    def __iter__(self) -> Iterator[Row]:
        for file in self.files:
            with fsspec.open(file, "rt", encoding="utf-8-sig", compression="infer") as content:
                lines = filter(str.strip, content)
                for line in lines:
                    is_list = line.lstrip().startswith("[")
                    rows = json.loads(line + "".join(lines)) if is_list else [json.loads(line)]
                    for row in rows:
                        yield row if isinstance(row, Mapping) else {"text": row}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows that a setting names.

    Args:
        key: of the setting, for messages.
        digest: text that changes with the content.
        dataset: of the library ``datasets``, or ``JsonRows``.
        part: the first row that is read, and the row behind the last.
    """

    name: str
    key: str
    digest: str
    dataset: Any
    part: Sequence[int | None]

    def read(self) -> Iterator[tuple[str, Row]]:
        """Yield each row, behind its origin for messages. Raise ``ConfigError`` if unreadable."""
        is_json = isinstance(self.dataset, JsonRows) or self.dataset.info.builder_name == "json"
        number = 0
        try:
            for number, row in enumerate(islice(self.dataset, *self.part), 1):
                if "__index_level_0__" in row:  # pandas takes further columns for names of rows
                    raise ValueError("a row has more columns than the first line")
                if not is_json:
                    row = {column: _without_nulls(value) for column, value in row.items()}
                yield f"{self.name} row {number}", row
        except Exception as error:  # pyarrow, pandas and datasets each raise their own
            raise _unreadable(self.name, self.key, error, f", behind row {number}") from None
        if not number:
            raise _unreadable(self.name, self.key, StopIteration())


def find_sources(names: str | Sequence[str], key: str) -> list[Source]:
    """List the sources that the setting ``key`` names, in order.

    Raises ``ConfigError`` if a file, a folder or a data set does not exist or cannot be loaded.
    """
    return [_find(name, key) for name in several(names)]


def _find(name: str, key: str) -> Source:
    from datasets import DatasetDict, load_dataset, load_from_disk

    hub, subset, path, split, *ends = _parsed(name)
    files = _files(path) if path and split in (None, "train") else []
    kinds = [KINDS.get(Path(file.lower().removesuffix(".gz")).suffix, AS_TEXT) for file in files]
    if kinds[1:] != kinds[:-1]:
        raise setting_error(key, name, "matches files of several kinds; give a pattern for each")

    split = split or "train"
    if not (files or hub or Path(path).is_dir()):
        raise setting_error(
            key, name, "no such file, folder or match of a pattern; hf:NAME is on the Hub"
        )

    try:
        if JSON in kinds:
            dataset: Any = JsonRows(files)
        elif files:  # also if a folder has the name of the kind
            kind, options = kinds[0]
            dataset = load_dataset(kind, data_files=files, split=split, streaming=True, **options)
        else:
            try:
                dataset = load_from_disk(hub or path)
            except FileNotFoundError:  # not a folder of save_to_disk
                dataset = load_dataset(hub or path, subset, split=split)
            if isinstance(dataset, DatasetDict):
                dataset = dataset[split]
    except Exception as error:  # no such name or no network: each library raises its own
        raise _unreadable(name, key, error) from None
    if not files and dataset.info.builder_name == "text":
        raise setting_error(
            key, name, "holds texts; name the files, each of which is a row: FOLDER/**/*.txt"
        )

    digest = " ".join(map(hash_file, map(Path, files))) or fingerprint(dataset)
    part = [int(number) if number else None for number in ends]
    return Source(name=name, key=key, digest=f"{digest} {part}", dataset=dataset, part=part)


def _files(pattern: str) -> list[str]:
    return list(filter(os.path.isfile, sorted(glob(pattern, recursive=True)) or [pattern]))


def _parsed(name: str) -> Any:
    """Return name and subset on the Hub, or a path, then the split, and first and last row."""
    found: Any = NAME.fullmatch(str(Path(name).expanduser()))
    return found.groups()


def hub_stream(name: str) -> Any:
    """Return the stream of a data set of the Hub."""
    from datasets import load_dataset

    hub, subset, _, split, *ends = _parsed(name)
    if any(ends):
        raise setting_error(
            "data", name, "stream: true reads the whole split. Leave out the part, or stream: true"
        )
    return load_dataset(hub, subset, split=split or "train", streaming=True)


def _unreadable(name: str, key: str, error: Exception, place: str = "") -> Exception:
    cause = error.__cause__ or error
    # datasets raises StopIteration if a file has no first row.
    reason = "it has no row" if isinstance(cause, StopIteration) else first_line(cause)
    return setting_error(key, name, f"cannot be read: {reason}{place}")


def _without_nulls(value: Any) -> Any:
    """Return a value without the keys that Arrow adds to make all mappings of a column alike."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
