"""Of a folder the files of one kind and one split are read; an unclear folder is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_language import read_rows

from trainer import ConfigError


def save(folder: Path, *names: str) -> str:
    """A folder of files, each of which holds a row or a text with its own name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        said = json.dumps({"text": name}) + "\n" if ".json" in name else name
        (folder / name).write_text(said)
    return str(folder)


def test_of_a_data_sets_folder_its_rows_of_one_split_are_read(tmp_path: Path) -> None:
    about = ("README.md", "LICENSE", ".gitattributes", "dataset_infos.json")
    shards = (
        "data/train-00000-of-00002.jsonl",
        "data/train-00001-of-00002.jsonl",
        "data/test-00000-of-00001.jsonl",
    )
    folder = save(tmp_path / "clone", *about, *shards)
    assert [row["text"] for row in read_rows(folder)] == list(shards[:2])
    assert [row["text"] for row in read_rows(f"{folder}@test")] == list(shards[2:])
    assert [
        row["text"] for row in read_rows(save(tmp_path / "dirs", "train/a.jsonl", "dev/a.jsonl"))
    ] == ["train/a.jsonl"]
    assert [
        row["text"] for row in read_rows(save(tmp_path / "none", "README.md", "a.jsonl", "b.jsonl"))
    ] == [
        "a.jsonl",
        "b.jsonl",
    ]
    assert read_rows(save(tmp_path / "text", "LICENSE", "train.txt", "valid.txt")) == ["train.txt"]
    assert read_rows(save(tmp_path / "code", "test_a.py", "b.py", "README.rst")) == [
        "b.py",
        "test_a.py",
    ]
    assert read_rows(save(tmp_path / "only", "README.md", "LICENSE")) == ["LICENSE", "README.md"], (
        "there is nothing else"
    )


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (
            ("train.jsonl", "test.jsonl", "more.jsonl"),
            "",
            r"splits \(test, train\) and files of none \(more.jsonl\)",
        ),
        (("test.jsonl",), "", r"has no split 'train'; write .*folder@test"),
        (("train.jsonl", "test.jsonl"), "@dev", r"has no split 'dev'; write .*@test or @train"),
        (("a.jsonl",), "@test", "has no splits"),
        (
            ("a.jsonl", "b.parquet", "c.txt"),
            "",
            r"files of several kinds \(.*a.jsonl.*\); give a pattern for the data",
        ),
    ],
)
def test_a_folder_whose_data_files_are_unclear_is_refused(
    names: tuple[str, ...], asked: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_rows(save(tmp_path / "folder", *names) + asked)
