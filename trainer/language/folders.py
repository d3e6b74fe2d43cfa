"""Which files of a folder are data: those of one kind, of one split, and neither its README nor its
licence.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..text import listed
from .problems import setting_error

# As the library datasets knows them: words of a file's or a folder's name, apart from others by
# signs or digits.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
ABOUT = re.compile(
    r"(readme|licen[cs]e|notice|copying|citation|dataset_infos|datapackage)\b", re.IGNORECASE
)
TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def kind_of(path: Path) -> str:
    """Return the ending that says how a file is read, in small letters and without .gz; plain text
    has none.
    """
    name = path.name.lower().removesuffix(".gz")
    return next((kind for kind in TABLES if name.endswith(kind)), "")


def files_of_folder(folder: Path, split: str | None, key: str) -> list[Path]:
    """Return the files of a folder that are meant, in the order of their names.

    Args:
        split: asked for; None: ``train`` where the names of the files tell splits apart, else all.

    Raises:
        ConfigError: there is none, or it does not show which are meant.
    """
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _hidden(path.relative_to(folder))
    ]
    files = [path for path in found if not ABOUT.match(path.name)] or found
    if not files:
        raise setting_error(key, str(folder), "holds no file")
    kinds = sorted({kind_of(path) or "plain text" for path in files})
    if len(kinds) > 1:
        examples = listed(
            [
                str(next(p for p in files if (kind_of(p) or "plain text") == kind).name)
                for kind in kinds
            ]
        )
        rule = f"holds files of several kinds ({examples}); name those that are meant: {folder}/**/*{TABLES[0]}"
        raise setting_error(key, str(folder), rule)
    of = {path: _split_of(path.relative_to(folder)) for path in files}
    told_apart = sorted({name for name in of.values() if name is not None})
    unclear = len(told_apart) == 1 and told_apart != ["train"] and kinds != ["plain text"]
    if split is None and len(told_apart) < 2 and not unclear:
        return files
    wanted = split or "train"
    chosen = [path for path, name in of.items() if name == wanted]
    if not chosen:
        rule = (
            f"has no split {wanted!r}; write {folder}@{' or @'.join(told_apart)}"
            if told_apart
            else "has no splits"
        )
        raise setting_error(key, str(folder), rule)
    without = [path.name for path, name in of.items() if name is None]
    if without:
        rule = f"has splits ({', '.join(told_apart)}) and files of none ({listed(without)}); name those that are meant"
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


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
