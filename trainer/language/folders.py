"""Which files of a folder are data: those of one kind and of one split, without its README."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..text import listed
from .problems import setting_error

# As the library datasets knows them: words of a file's or a folder's name, between other signs or
# digits.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
NOT_DATA = re.compile(
    r"(readme|licen[cs]e|notice|copying|citation|dataset_infos|datapackage)\b", re.IGNORECASE
)
ROW_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
PLAIN_TEXT = "plain text"


def kind_of(path: Path) -> str:
    """Return the suffix that says how a file is read, in lower case without .gz; "" for text."""
    name = path.name.lower().removesuffix(".gz")
    for kind in ROW_FILES:
        if name.endswith(kind):
            return kind
    return ""


def files_of_folder(folder: Path, split: str | None, key: str) -> list[Path]:
    """Return the data files of a folder, in the order of their names.

    Args:
        split: requested; None: ``train`` where the names of the files show splits, else all files.
        key: of the setting that names the folder, for messages.

    Raises:
        ConfigError: there is none, or it is not clear which files are data.
    """
    files = _data_files(folder)
    if not files:
        raise setting_error(key, str(folder), "holds no file")

    kind = _only_kind(folder, files, key)
    split_of = {path: _split_of(path.relative_to(folder)) for path in files}
    splits = sorted({name for name in split_of.values() if name is not None})
    # One split that is not train means that the others are missing, but in a folder of texts it
    # is a name such as test_a.py.
    is_other_split = len(splits) == 1 and splits != ["train"] and kind != PLAIN_TEXT
    if split is None and len(splits) < 2 and not is_other_split:
        return files
    return _files_of_split(folder, split or "train", split_of, splits, key)


def _data_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are not hidden, and not about the data."""
    visible = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            visible.append(path)

    files = [path for path in visible if not NOT_DATA.match(path.name)]
    return files or visible


def _only_kind(folder: Path, files: Sequence[Path], key: str) -> str:
    """Return the kind of some files, which must be the same for all."""
    examples: dict[str, str] = {}
    for path in files:
        examples.setdefault(kind_of(path) or PLAIN_TEXT, path.name)
    if len(examples) == 1:
        return next(iter(examples))

    names = listed([examples[kind] for kind in sorted(examples)])
    pattern = f"{folder}/**/*{ROW_FILES[0]}"
    rule = f"holds files of several kinds ({names}); give a pattern for the data: {pattern}"
    raise setting_error(key, str(folder), rule)


def _files_of_split(
    folder: Path,
    wanted: str,
    split_of: Mapping[Path, str | None],
    splits: Sequence[str],
    key: str,
) -> list[Path]:
    """Return the files of one split.

    Args:
        split_of: each file; None: its name shows no split.
        splits: that there are.

    Raises:
        ConfigError: there is no such split, or there are files of none.
    """
    chosen = [path for path, split in split_of.items() if split == wanted]
    if not chosen:
        rule = "has no splits"
        if splits:
            rule = f"has no split {wanted!r}; write {folder}@{' or @'.join(splits)}"
        raise setting_error(key, str(folder), rule)

    without = [path.name for path, split in split_of.items() if split is None]
    if without:
        names = ", ".join(splits)
        rule = (
            f"has splits ({names}) and files of none ({listed(without)}); give a pattern for the "
            "data"
        )
        raise setting_error(key, str(folder), rule)
    return chosen


def _split_of(path: Path) -> str | None:
    """Return the split that the words of a path name, the file's before the folders'."""
    for part in reversed(path.parts):
        words = set(re.split(r"[-._ 0-9]+", part.lower()))
        for split, names in SPLITS.items():
            if words.intersection(names):
                return split
    return None
