"""Rows of unknown number: the same on any layout, and resumed from cursors on any other."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import IterableDataset
from layouts import layout

import trainer
from trainer import CheckpointError, DataError
from trainer.data import lane_stream
from trainer.data.lane_stream import LaneStream
from trainer.data.lanes import InLanes
from trainer.data.stream import StreamData

SHARDS = 30
SIZES = [7 + 13 * shard % 40 for shard in range(SHARDS)]


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"id": 100 * shard + row} for row in range(SIZES[shard]))


def hub_stream(shards: int = SHARDS) -> Any:
    stream = IterableDataset.from_generator(rows, gen_kwargs={"shards": [*range(shards)]})
    return trainer.blocks(stream)


def packed(read: list[dict[str, int]]) -> list[dict[str, int]]:
    """Put two rows into one, as often as their sum is even."""
    pairs = zip(read[::2], read[1::2], strict=False)
    return [{"id": 10_000 * a["id"] + b["id"]} for a, b in pairs if (a["id"] + b["id"]) % 3]


def of_files(folder: Path) -> LaneStream:
    for file in range(3):
        lines = [json.dumps(row) for row in rows([*range(file, SHARDS, 3)])]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    blocks = trainer.blocks(f"{folder}/*.jsonl", lines=16, cache_dir=str(folder / "cache"))
    return LaneStream(blocks, packed)


def data_of(stream: Any, rank: int, world: int, batch: int, workers: int = 0) -> StreamData:
    of_rank = layout(rank, world, 1, batch // world)
    return StreamData(stream, of_rank, seed=5, collate=list, workers=workers)


def ids(
    stream: Any,
    world: int,
    steps: int,
    state: Any = None,
    batch: int = 24,
    workers: int = 0,
) -> tuple[list[list[int]], Any]:
    """Return the ids of each step over all ranks, and the state that is saved behind the last."""
    found: list[list[int]] = [[] for _ in range(steps)]
    ranks = []
    for rank in range(world):
        data = data_of(stream(), rank, world, batch, workers)
        position = data.restore(state) if state else 0
        for step, window in zip(found, data.windows(position, steps), strict=True):
            step += [row["id"] for micro in window.micros for row in micro.batch]
        ranks.append(data)
    parts = [data._state.stream for data in ranks]
    ranks[0].gather(lambda own: parts)
    return [sorted(step) for step in found], json.loads(json.dumps(ranks[0].state()))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_stream, "PIECE", 10)  # up to five of a shard


@pytest.fixture(params=["hub", "packed"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return hub_stream if request.param == "hub" else lambda: of_files(tmp_path)


def test_a_step_has_the_same_samples_on_any_layout(stream: Any) -> None:
    alone, _ = ids(stream, 1, 60)
    assert len({*alone[0]}) == 24
    again = stream()
    assert ids(lambda: again, 1, 5)[0] == ids(lambda: again, 1, 5)[0] == alone[:5]
    for world in (2, 3, 4):
        assert ids(stream, world, 60)[0] == alone
    assert ids(stream, 2, 20, workers=1)[0] == alone[:20]


def test_a_run_goes_on_behind_any_stop_on_any_layout(stream: Any) -> None:
    alone, _ = ids(stream, 1, 80)
    draw = random.Random(0)
    found: list[list[int]] = []
    state = None
    for _ in range(20):
        world = draw.choice((1, 2, 3, 4))
        steps, state = ids(stream, world, draw.randint(1, 4), state, workers=draw.choice((0, 0, 1)))
        found += steps
    assert found == alone[: len(found)]


def test_another_batch_goes_on_with_the_same_samples(stream: Any) -> None:
    first, state = ids(stream, 2, 20, batch=24)
    second, state = ids(stream, 3, 20, state, batch=12)
    third, state = ids(stream, 4, 5, state, batch=48)
    alone, _ = ids(stream, 1, 40)
    together = [number for step in (*first, *second, *third) for number in step]
    assert Counter(together) == Counter(number for step in alone for number in step)
    assert state["order"]["lanes"] == 24


def test_each_lane_reads_its_shards_once_a_pass_and_a_rank_reads_its_part() -> None:
    counted = Counter[int]()

    class Counted(InLanes):
        def pieces(self, shard: int, piece: int) -> Iterator[list[Any]]:
            counted[shard] += 1
            yield [*rows([shard])]

    order = Counted({}, SHARDS)
    [alone] = [next(LaneStream(order).batches(layout(micro=sum(SIZES) * 2), 1, 0))]
    assert Counter(row["id"] for row in alone) == Counter(
        row["id"] for row in rows([*range(SHARDS)]) for _ in range(2)
    )
    assert {*counted.values()} == {2}

    loads = []
    for rank in range(3):
        counted.clear()
        data = data_of(LaneStream(Counted({}, SHARDS)), rank, 3, 24)
        for _ in data.windows(0, 60):
            pass
        loads.append(sum(counted.values()))
    assert max(loads) < 1.2 * sum(loads) / 3


def test_other_shards_and_shards_without_rows_are_one_line() -> None:
    _, state = ids(hub_stream, 1, 2)
    with pytest.raises(CheckpointError, match="training data changed: shards of the stream"):
        data_of(hub_stream(SHARDS - 1), 0, 1, 24).restore(state)
    empty = IterableDataset.from_generator(lambda shards: iter(()), gen_kwargs={"shards": [1, 2]})
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"Data\.train: shards of .* give no sample"):
            next(data_of(trainer.blocks(empty), 0, 1, 2, workers).windows(0, 1))


def test_the_end_is_told_by_max_steps_and_the_whole_is_evaluated() -> None:
    data = data_of(hub_stream(), 0, 1, 24)
    assert data.steps_per_epoch is None and data.epochs_at(1000) == 0.0
    assert data.notices(10) == ["blocks: 30 in 24 lanes"]
    assert [row["id"] for row in hub_stream()] == [row["id"] for row in rows([*range(SHARDS)])]
