"""Files and folders that appear whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from trainer.checkpoint import disk
from trainer.checkpoint.disk import delete, hash_file, part_of, publish, write_file


def test_publish_of_a_folder_replaces_the_one_before(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for content in ("before", "after"):
        (part_of(model) / "words").mkdir(parents=True)
        (part_of(model) / "words" / content).write_text(content)
        (part_of(model) / "nowhere").symlink_to("missing")
        publish(model)
    assert os.listdir(tmp_path) == ["model"] and os.listdir(model / "words") == ["after"]


def test_publish_of_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    for content in ("before", "after"):
        part_of(tmp_path / "rows").write_text(content)
        publish(tmp_path / "rows")
    assert os.listdir(tmp_path) == ["rows"] and (tmp_path / "rows").read_text() == "after"


def test_publish_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "rows").write_text("before")
    part_of(tmp_path / "rows").write_text("after")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path / "rows")
    assert (tmp_path / "rows").read_text() == "before"


def test_delete_of_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    delete(tmp_path / "link")
    delete(tmp_path / "nothing")
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("advised", [True, False])
def test_the_disk_begins_to_write_while_the_rest_is_copied(
    advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def advise(handle: int, begin: int, count: int, advice: int) -> None:
        assert os.fstat(handle).st_size >= begin + (count if count > 8192 else 0), (
            "already in the file"
        )
        asked.append((begin, count))

    if advised:
        monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
        monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    else:  # as on macOS
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(disk, "AHEAD", 10_000)
    parts = [os.urandom(3), memoryview(os.urandom(25_000)), b"", os.urandom(10_000)]
    fact = write_file(tmp_path / "numbers", parts)
    content = b"".join(parts)
    assert (tmp_path / "numbers").read_bytes() == content
    assert (
        fact
        == ("numbers", 35_003, xxhash.xxh3_128(content).hexdigest())
        == (*fact[:2], hash_file(tmp_path / "numbers"))
    )
    places = [(0, 3), (3, 10_000), (10_003, 10_000), (20_003, 5_000), (25_003, 10_000)]
    assert asked == (places if advised else [])
