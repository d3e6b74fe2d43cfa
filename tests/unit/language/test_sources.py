"""Rows are the same from every kind of file, and what cannot be read is named."""

from __future__ import annotations

import csv
import gc
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_language import read_rows, save_rows

from trainer import ConfigError
from trainer.language.sources import find_sources, hub_stream

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "três", "n": 3}]


@pytest.mark.usefixtures("hugging_face_cache")
def test_rows_are_the_same_from_every_kind_of_file(tmp_path: Path) -> None:
    import datasets
    from pyarrow import Table, parquet

    datasets.disable_progress_bars()
    folder = tmp_path / "folder"
    folder.mkdir()
    save_rows(folder / "a.jsonl", ROWS)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    parquet.write_table(Table.from_pylist(ROWS), tmp_path / "a.parquet")
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": saved, "test": saved.select([2])}).save_to_disk(
        str(tmp_path / "splits")
    )
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for name in ("a.ndjson", "A.JSONL", "lines.json"):
        (tmp_path / name).write_text(lines)
    (tmp_path / "bom.jsonl").write_text(lines, encoding="utf-8-sig")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    names = "a.ndjson A.JSONL lines.json bom.jsonl a.jsonl.gz folder/a.jsonl a.json a.parquet "
    for name in (names + "folder fol*/*.jsonl saved splits splits@train").split():
        assert read_rows(str(tmp_path / name)) == ROWS, name
    assert read_rows(f"{tmp_path}/splits@test") == ROWS[2:]
    assert read_rows(f"hf:{folder}@train[1:]") == ROWS[1:], "as datasets reads a name of the Hub"
    for name in ("a.json", "saved", "splits", "fol*/*.jsonl"):
        assert read_rows(f"{tmp_path}/{name}@train[1:2]") == read_rows(f"{tmp_path}/{name}")[1:2]
    assert read_rows([str(tmp_path / "a.json"), f"{tmp_path}/splits@test"]) == [*ROWS, ROWS[2]]


TALK = [{"role": "user", "content": "2024-01-02"}, {"role": "assistant", "content": "ran"}]
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "sat"}]}
CALL = {"tool_calls": [{"function": {"name": "f", "arguments": {"x": None}}}], "content": None}
MIXED: list[dict[str, Any]] = [
    {"messages": TALK},
    {"messages": [TALK[0], PARTS], "other": {"a": 1}},
    {"messages": [TALK[0], {"role": "assistant", "weight": 0, **CALL}], "other": "a"},
    {"text": "2024-01-02", "other": None},
    {"text": 5},
]


def test_json_is_read_as_written(tmp_path: Path) -> None:
    """Also if a value has another type than those before: in a list, and in another file."""
    (tmp_path / "list.json").write_text("\n " + json.dumps(MIXED, indent=1))
    (tmp_path / "bom.json").write_text(json.dumps(MIXED), encoding="utf-8-sig")
    (tmp_path / "list.JSON.gz").write_bytes(gzip.compress(json.dumps(MIXED).encode()))
    save_rows(tmp_path / "a0.jsonl", MIXED[:1])
    save_rows(tmp_path / "a1.jsonl", MIXED[1:])
    for name in ("list.json", "bom.json", "list.JSON.gz", "a*.jsonl"):
        assert read_rows(str(tmp_path / name)) == MIXED, name
    (tmp_path / "texts.json").write_text('["a", "b"]')
    assert read_rows(str(tmp_path / "texts.json")) == [{"text": "a"}, {"text": "b"}]


def test_tables_have_the_columns_that_their_first_line_names(tmp_path: Path) -> None:
    texts = [{"text": 'one, "two"', "label": "a"}, {"text": "three\nlines\tmore", "label": ""}]
    for name, dialect in (("a.csv", "excel"), ("b.TSV", "excel-tab")):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"], dialect=dialect)
            writer.writeheader()
            writer.writerows(texts)
        assert read_rows(str(tmp_path / name)) == texts, name
    (tmp_path / "c.csv").write_text("text,label\na,b\nc\n")
    assert read_rows(str(tmp_path / "c.csv"))[1] == {"text": "c", "label": ""}
    (tmp_path / "d.csv").write_text('text\n"open')
    with pytest.raises(ConfigError, match=r"d.csv': cannot be read: "):
        read_rows(str(tmp_path / "d.csv"))


@pytest.mark.filterwarnings("ignore:Exception ignored")  # datasets leaves the file open
def test_a_row_with_more_columns_than_the_first_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,b,c\n")
    with pytest.raises(ConfigError, match=r"a.csv': .* more columns than the first line"):
        read_rows(str(tmp_path / "a.csv"))
    gc.collect()


def test_null_keys_that_arrow_adds_are_removed(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "calls": [{"a": 1}, {"b": 2}]}]
    parquet.write_table(
        Table.from_pylist([{"messages": talk, "text": None}]), tmp_path / "a.parquet"
    )
    assert read_rows(str(tmp_path / "a.parquet")) == [{"messages": talk, "text": None}]


def test_plain_text_is_one_document_a_file_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n\nand more\n")
    with pytest.raises(ConfigError, match=r"holds texts; name the files, .*/\*\*/\*.txt"):
        read_rows(str(tmp_path))
    found = [row["text"].split("\n")[0] for row in read_rows(f"{tmp_path}/**/*.txt")]
    assert found == ["text of a.txt", "text of b/1.txt", "text of b/2.txt"]


def test_digest_changes_with_the_content_only(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return find_sources(str(tmp_path / name), "data")[0].digest

    assert digest("a.txt", "one") == digest("b.txt", "one") != digest("a.txt", "two")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, r"data: '.*absent.txt': no such file, folder or match of a pattern"),
        ("latin.txt", "é".encode("latin-1"), r"data: '.*latin.txt': cannot be read: 'utf-8' codec"),
        (
            "bad.jsonl",
            b'{"text": "a"}\n{"text": \n',
            r"'.*bad.jsonl': cannot be read: Expecting value: .*, behind row 1",
        ),
        ("cut.json", b'{"a": 1}\n{"a": \n', r"'.*cut.json': cannot be read: Expecting value"),
        ("cut.json", b'[{"a": 1},\n{"a": \n', r"'.*cut.json': cannot be read: .* line 3 column 1"),
        ("half.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-4], r"'.*half.jsonl.gz': .*ended"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", r"'.*a.jsonl.zst': .*zstd not supported"),
        ("empty.jsonl", b"", r"'.*empty.jsonl': cannot be read: it has no row"),
    ],
)
def test_what_cannot_be_read_is_named(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_rows(str(tmp_path / name))


@pytest.mark.usefixtures("hugging_face_cache")
def test_empty_folder_unknown_split_and_unreachable_hub_are_refused(tmp_path: Path) -> None:
    import datasets

    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty': cannot be read: .* any data files"):
        read_rows(str(tmp_path / "empty"))
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(
        str(tmp_path / "splits")
    )
    with pytest.raises(ConfigError, match=r"splits': cannot be read: .*train"):
        read_rows(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"data: 'hf:no-such/set': cannot be read: "):
        read_rows("hf:no-such/set")


def test_a_stream_of_a_part_of_the_hubs_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="Leave out the part, or stream: true"):
        hub_stream("hf:some/set@train[:1000]")


def test_a_folder_with_the_name_of_a_kind_is_not_read_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    datasets.Dataset.from_list([{"text": "other"}]).save_to_disk(str(tmp_path / "csv"))
    (tmp_path / "own.csv").write_text("text\nmine\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"own.csv': cannot be read: .*save_to_disk"):
        read_rows("own.csv")
