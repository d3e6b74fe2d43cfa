"""Rows are the same wherever they lie, and what cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_language import save_rows

from trainer import ConfigError
from trainer.language.sources import find_sources

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "três", "n": 3}]


def rows(name: str | list[str]) -> list[Any]:
    return [row for source in find_sources(name, "data") for _, row in source.read()]


def test_rows_are_the_same_from_every_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from pyarrow import Table, parquet

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    datasets.disable_progress_bars()
    folder = tmp_path / "folder"
    folder.mkdir()
    save_rows(folder / "a.jsonl", ROWS)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    parquet.write_table(Table.from_pylist(ROWS), tmp_path / "a.parquet")
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": saved, "test": saved.select([2])}).save_to_disk(str(tmp_path / "splits"))
    for name in ("folder/a.jsonl", "a.json", "a.parquet", "folder", "fol*/*.jsonl", "saved", "splits", "splits@train"):
        assert rows(str(tmp_path / name)) == ROWS, name
    assert rows(f"{tmp_path}/splits@test") == ROWS[2:]
    assert rows(f"hf:{folder}@train[1:]") == ROWS[1:], "as datasets reads a name of the Hub"
    assert rows([str(tmp_path / "a.json"), f"{tmp_path}/splits@test"]) == [*ROWS, ROWS[2]]


def test_plain_text_is_one_document_a_file_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.md", "a.txt", "b/1.txt", ".hidden/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n")
    assert rows(str(tmp_path)) == ["text of a.txt\n", "text of b/1.txt\n", "text of b/2.md\n"]


def test_digest_changes_with_the_content_only(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return find_sources(str(tmp_path / name), "data")[0].digest

    assert digest("a.txt", "one") == digest("b.txt", "one") != digest("a.txt", "two")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, r"data: '.*absent.txt': no such file, folder or match of a pattern"),
        ("latin.txt", "é".encode("latin-1"), r"data: '.*latin.txt': is no UTF-8 text \(byte 0\)"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', r"data: '.*bad.jsonl:2': is no JSON: Expecting value"),
        ("list.jsonl", b"[1]\n", r"data: '.*list.jsonl:1': must be an object with columns"),
        ("object.json", b"{}", r"data: '.*object.json': must be a list of objects"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        rows(str(tmp_path / name))


def test_empty_folder_unknown_split_and_unreachable_hub_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty': holds no file"):
        rows(str(tmp_path / "empty"))
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"splits': has no split 'train'; write .*splits@test"):
        rows(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"data: 'hf:no-such/set': cannot be loaded: "):
        rows("hf:no-such/set")
