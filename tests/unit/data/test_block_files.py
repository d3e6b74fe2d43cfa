"""Rows that are read in blocks: one order on any layout, a part of the files a rank, and bad files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import trainer
from trainer import CheckpointError, DataError
from trainer.data import block_files
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData

ROWS, BLOCK, FILES = 6000, 50, 4
BATCH = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    each = ROWS // FILES
    for number in range(FILES):
        rows = [
            {"id": row, "text": f"row {row}"} for row in range(each * number, each * number + each)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{number}.jsonl").write_text(lines)
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=BLOCK)
    return folder


def rows_of(files: Path, kind: str = "jsonl") -> Any:
    return trainer.blocks(f"{files}/*.{kind}", lines=BLOCK, cache_dir=str(files / "cache"))


def data_of(rows: Any, rank: int, world_size: int, **settings: Any) -> IndexedData:
    accumulation = BATCH // world_size // 2
    layout = Layout(
        rank=rank, world_size=world_size, micro_batch_size=2, accumulation_steps=accumulation
    )
    return IndexedData(rows, layout, seed=1, collate=list, **settings)


def count_loads(rows: Any, log: Path) -> None:
    """Let each load of a block write a line, in whatever process."""
    load = rows._load

    def counted(number: int) -> Any:
        with log.open("a") as file:
            file.write("block\n")
        return load(number)

    log.write_text("")
    rows._load = counted


def loads_in(log: Path) -> int:
    return len(log.read_text().splitlines())


def steps(
    files: Path, world_size: int, position: int = 0, count: int = 300, kind: str = "jsonl"
) -> tuple[list[list[int]], list[int]]:
    """Return the ids of each step over all ranks, and how many blocks each rank read."""
    found: list[list[int]] = [[] for _ in range(count)]
    loads = []
    for rank in range(world_size):
        rows, log = rows_of(files, kind), files / "loads.txt"
        count_loads(rows, log)
        windows = data_of(rows, rank, world_size).windows(position, count)
        for ids, window in zip(found, windows, strict=True):
            micros = [micro for micro in window.micros if micro.weight]
            ids += [row["id"] for micro in micros for row in micro.batch]
        loads.append(loads_in(log))
    return [sorted(step) for step in found], loads


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_step_has_the_same_rows_on_any_layout_and_a_rank_reads_a_part(
    kind: str, files: Path
) -> None:
    alone, [all_blocks] = steps(files, 1, kind=kind)
    epoch = [row for step in alone[: ROWS // BATCH] for row in step]
    assert sorted(epoch) == list(range(ROWS)), "each row once"
    assert epoch != list(range(ROWS))
    assert all_blocks < 1.2 * 300 * BATCH / BLOCK, "few blocks are read twice"
    for world_size in (2, 3, 4):
        of_ranks, loads = steps(files, world_size, kind=kind)
        assert of_ranks == alone
        assert max(loads) < 1.4 * all_blocks / world_size + 10
    assert steps(files, 3, position=200 * BATCH, count=100, kind=kind)[0] == alone[200:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3:UserWarning")
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2), (2, 3), (4, 5)])
def test_loading_processes_share_the_blocks_and_read_the_same(
    rank: int, world_size: int, files: Path, tmp_path: Path
) -> None:
    batches, loads = [], []
    for workers in (0, 1, 3):
        rows, log = rows_of(files), tmp_path / "loads.txt"
        count_loads(rows, log)
        layout = Layout(rank=rank, world_size=world_size, micro_batch_size=7, accumulation_steps=3)
        data = IndexedData(rows, layout, seed=1, collate=list, workers=workers)
        windows = data.windows(0, 1 + ROWS // layout.global_batch_size)
        batches.append([micro.batch for w in windows for micro in w.micros if micro.weight])
        loads.append(loads_in(log))
    assert batches[0] == batches[1] == batches[2]
    assert loads[0] == loads[1] and loads[2] < 1.2 * loads[0] + 10


def test_a_store_has_the_rows_of_the_files(files: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in files.glob("*.jsonl"):
        memory.pipe(f"/rows/{file.name}", file.read_bytes())
    remote = trainer.blocks("memory://rows/*.jsonl", lines=BLOCK, cache_dir=str(files / "cache"))
    local = rows_of(files)
    assert len(remote) == len(local) == ROWS
    for row in (0, 1, ROWS // 2, ROWS - 1):
        assert remote[row] == local[row]


def test_a_resume_keeps_the_lanes_and_refuses_other_files(files: Path, tmp_path: Path) -> None:
    first = data_of(rows_of(files), 0, 1)
    state = json.loads(json.dumps(first.state()))
    assert state["order"]["lanes"] == 24

    layout = Layout(rank=0, world_size=1, micro_batch_size=2, accumulation_steps=5)
    other = IndexedData(rows_of(files), layout, seed=1, collate=list)
    other.restore(state)
    ours, theirs = (data.order.of_epoch(1, 0)(np.arange(100)) for data in (other, first))
    assert np.array_equal(ours, theirs)

    for file in files.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state["order"]["files"] = data_of(rows_of(tmp_path), 0, 1).order.state()["files"]
    (tmp_path / "4.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(
        CheckpointError, match=r"training data changed: file://\S*/4.jsonl; restore"
    ):
        data_of(rows_of(tmp_path), 0, 1).restore(state)
    (tmp_path / "4.jsonl").rename(tmp_path / "3.jsonl")
    with pytest.raises(
        CheckpointError, match=r"training data changed: file://\S*/3.jsonl; restore"
    ):
        data_of(rows_of(tmp_path), 0, 1).restore(state)


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("a.csv", "a,b\n", r"a.csv: cannot be read: Expecting value: .* a,b"),
        ("a.jsonl", "", "there is no row"),
        ("a.parquet", "no parquet", r"a.parquet: cannot be read"),
        ("a.jsonl", '{"id": 1\n', r"a.jsonl: cannot be read: Expecting .* \{\"id\": 1"),
    ],
)
def test_a_bad_file_is_one_line(name: str, content: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=rule):
        trainer.blocks(f"{tmp_path}/a.*", cache_dir=str(tmp_path / "cache"))[0]
    with pytest.raises(DataError, match="no such file"):
        trainer.blocks(f"{tmp_path}/none*")


def test_a_file_that_was_cut_is_refused_at_the_block(files: Path, tmp_path: Path) -> None:
    lines = (files / "0.jsonl").read_text().splitlines(keepends=True)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(lines[:200]))
    rows = trainer.blocks(str(file), lines=BLOCK, cache_dir=str(tmp_path / "cache"))
    file.write_text("".join(lines[:170]))
    assert rows[100] == json.loads(lines[100])
    with pytest.raises(
        DataError, match=r"a\.jsonl: cannot be read: a block has 20 rows, and had 50 before"
    ):
        rows[199]
    file.unlink()
    with pytest.raises(DataError, match=r"a\.jsonl: cannot be read"):
        rows[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_block_that_is_damaged_is_one_line_at_its_step(
    kind: str, workers: int, files: Path, tmp_path: Path
) -> None:
    for file in files.glob(f"*.{kind}"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = data_of(rows_of(tmp_path, kind), 0, 1, workers=workers)
    windows = data.windows(0, ROWS // BATCH)
    next(windows)
    damaged = tmp_path / f"2.{kind}"
    damaged.write_bytes(damaged.read_bytes()[:999])
    with pytest.raises(DataError, match=rf"^blocks: file://.*2\.{kind}: cannot be read: [^\n]*$"):
        list(windows)
    assert BATCH < data.position < ROWS


def test_a_bucket_without_permission_or_package_is_one_line(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("AccessDenied")

    store = fsspec.filesystem("memory")
    store.pipe("/bucket/0.jsonl", (files / "0.jsonl").read_bytes())
    cache = str(files / "cache")
    rows = trainer.blocks("memory://bucket/*.jsonl", cache_dir=cache)
    monkeypatch.setattr(type(store), "cat_file", refuse)
    with pytest.raises(DataError, match=r"^blocks: memory://.*: cannot be read: AccessDenied$"):
        rows[0]

    monkeypatch.setattr(type(store), "glob", refuse)
    for address, reason in (("memory://a/*", "AccessDenied"), ("s3://a/b", ".*s3fs")):
        line = f"^blocks: {re.escape(address)}: cannot be read: {reason}"
        with pytest.raises(DataError, match=line):
            trainer.blocks(address, cache_dir=cache)


def test_blocks_that_do_not_fit_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_files, "MEMORY_SHARE", 1e-9)
    with pytest.raises(DataError, match="write smaller row groups, or lower the global batch"):
        data_of(rows_of(files), 0, 1)


def test_blocks_are_refused_if_every_layout_must_have_the_same_micro_batches(files: Path) -> None:
    layout = Layout(
        rank=0,
        world_size=1,
        micro_batch_size=2,
        accumulation_steps=5,
        whole_micro_batches=True,
    )
    with pytest.raises(DataError, match="drop same_bits"):
        IndexedData(rows_of(files), layout, seed=1, collate=list)
