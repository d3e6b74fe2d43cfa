"""Rows in blocks and mixtures beside the peers: bytes, resume, speed, shuffle, shares.

    python -m benchmarks.data_at_scale FOLDER  # writes 200,000 rows into FOLDER, once

litdata and mosaicml-streaming are measured if they are installed. A turn has each contender once, in a process of its own, for some leave threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

import trainer
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.data.lane_stream import LaneStream
from trainer.data.stream import StreamData

ROWS, GROUP, FILES, BATCH = 200_000, 1000, 8, 240
TURNS, READ = 7, 96_000  # rows of a turn
BUFFER = 10_000


def write(folder: Path) -> None:
    """Write rows that are sorted by their label, as Parquet and as JSONL."""
    draw = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(5000)])
    for file in range(FILES):
        each = ROWS // FILES
        rows = [
            {"id": row, "label": row // 2000, "text": " ".join(words[draw.integers(0, 5000, 40)])}
            for row in range(file * each, (file + 1) * each)
        ]
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, folder / f"{file}.parquet", row_group_size=GROUP)
        (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def layout(rank: int = 0, world: int = 1) -> Layout:
    return Layout(
        rank=rank, world_size=world, micro_batch_size=BATCH // world, accumulation_steps=1
    )


def blocks(folder: Path, kind: str) -> Any:
    return trainer.blocks(f"{folder}/*.{kind}", lines=GROUP, cache_dir=str(folder / "cache"))


def read_blocks(folder: Path, kind: str, workers: int = 0) -> Iterator[int]:
    return batches(IndexedData, blocks(folder, kind), workers=workers)


def read_lanes(folder: Path) -> Iterator[int]:
    return batches(StreamData, LaneStream(blocks(folder, "parquet")))


def batches(kind: Any, rows: Any, **settings: Any) -> Iterator[int]:
    data = kind(rows, layout(), seed=1, collate=list, weight_of=len, **settings)
    for window in data.windows(0, ROWS // BATCH):
        yield len(window.micros[0].batch)


def read_datasets(folder: Path, *, streaming: bool) -> Iterator[int]:
    import datasets
    from torch.utils.data import DataLoader

    files = sorted(map(str, folder.glob("*.parquet")))
    rows: Any = datasets.load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=streaming,
        cache_dir=str(folder / "hf"),
    )
    shuffled: dict[str, Any] = {"shuffle": True}
    if streaming:
        rows, shuffled = rows.shuffle(seed=1, buffer_size=BUFFER), {}
    loader = DataLoader(rows, batch_size=BATCH, collate_fn=list, **shuffled)
    yield from map(len, loader)


def read_litdata(folder: Path) -> Iterator[int]:
    import litdata

    if not (folder / "litdata").exists():
        litdata.index_parquet_dataset(str(folder))
        (folder / "litdata").mkdir()
    loader = litdata.streaming.item_loader.ParquetLoader()
    rows = litdata.StreamingDataset(str(folder), item_loader=loader, shuffle=True)
    yield from map(len, litdata.StreamingDataLoader(rows, batch_size=BATCH, collate_fn=list))


def read_streaming(folder: Path) -> Iterator[int]:
    import streaming
    from torch.utils.data import DataLoader

    made = folder / "mds"
    if not made.exists():
        columns = {"id": "int", "label": "int", "text": "str"}
        with streaming.MDSWriter(out=str(made), columns=columns) as writer:
            rows = blocks(folder, "parquet")
            for number in range(len(rows)):
                writer.write(rows[number])
    rows = streaming.StreamingDataset(local=str(made), shuffle=True, batch_size=BATCH)
    yield from map(len, DataLoader(rows, batch_size=BATCH, collate_fn=list))


def rate(read: Callable[[], Iterable[int]]) -> float:
    """Return rows a second, with the first batch, for which blocks and buffers are filled."""
    begin = time.perf_counter()
    rows = sum(islice(read(), READ // BATCH))
    return rows / (time.perf_counter() - begin)


def speeds(contenders: dict[str, Callable[[], Iterable[int]]]) -> None:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, read in contenders.items():
            with ProcessPoolExecutor(1, get_context("fork")) as alone:
                rates[name].append(alone.submit(rate, read).result())
    first = next(iter(rates))
    print(f"\n| rows a second | median | of {first} in the same turn |\n|---|---:|---:|")
    for name, found in rates.items():
        ratios = [own / other for own, other in zip(found, rates[first], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"| {name} | {statistics.median(found):,.0f} | {statistics.median(ratios):.2f} ({spread}) |"
        )


def bytes_and_resume(folder: Path, kind: str) -> None:
    total = sum(file.stat().st_size for file in folder.glob(f"*.{kind}"))
    print(
        f"\n| {kind} | bytes read of all in an epoch, by rank | 90 %: first step |\n|---|---|---:|"
    )
    for world in (1, 2, 4, 8):
        shares, resumes = [], []
        for rank in {0, world - 1}:
            rows = blocks(folder, kind)
            loaded: list[int] = []
            load = rows._load
            rows._load = lambda number, load=load, to=loaded: (to.append(number), load(number))[1]
            data = IndexedData(rows, layout(rank, world), seed=1, collate=list)
            for _ in data.windows(0, data.steps_per_epoch or 0):
                pass
            read = sum(rows.index[number].bytes for number in loaded)
            shares.append(read / sum(block.bytes for block in rows.index))

            begin = time.perf_counter()
            data = IndexedData(blocks(folder, kind), layout(rank, world), seed=1, collate=list)
            next(data.windows(int(ROWS * 0.9) // BATCH * BATCH, 1))
            resumes.append(time.perf_counter() - begin)
        told = ", ".join(f"{share:.3f}" for share in shares)
        print(f"| {world} ranks, {total:,} bytes | {told} | {max(resumes):.3f} s |")


def buffered(rows: Iterable[int], size: int) -> np.ndarray:
    draw = np.random.default_rng(1)
    held: list[int] = []
    found = []
    for row in rows:
        if len(held) < size:
            held.append(row)
            continue
        place = int(draw.integers(size))
        found.append(held[place])
        held[place] = row
    draw.shuffle(held)
    return np.array(found + held)


def shuffles(folder: Path) -> None:
    label = np.arange(ROWS) // 2000
    rows = blocks(folder, "parquet")
    block = np.searchsorted(rows.ends, np.arange(ROWS), side="right")
    orders = {
        "permutation": np.random.default_rng(3).permutation(ROWS),
        f"buffer of {BUFFER:,}": buffered(range(ROWS), BUFFER),
    }
    for lanes in (8, 24, 48, 120, 240):
        rows.lanes = lanes
        orders[f"{lanes} lanes"] = rows.of_epoch(7, 0)(np.arange(ROWS))
    print(
        "\n| order | spread of a batch's mean label | pairs of a batch from one block |\n|---|---:|---:|"
    )
    for name, order in orders.items():
        batches = order[: ROWS // BATCH * BATCH].reshape(-1, BATCH)
        spread = label[batches].mean(1).std() / (label.std() / np.sqrt(BATCH))
        counts = [np.unique(block[batch], return_counts=True)[1] for batch in batches]
        pairs = np.mean([(count * (count - 1)).sum() for count in counts]) / (BATCH * (BATCH - 1))
        print(f"| {name} | {spread:.2f} | {100 * pairs:.2f} % |")


def shares() -> None:
    import datasets

    sizes, weights = (90_000, 60_000, 60_000), (0.7, 0.2, 0.1)
    sets = [datasets.Dataset.from_dict({"source": [n] * size}) for n, size in enumerate(sizes)]
    count = 100_000
    drawn = datasets.interleave_datasets(
        sets, [*weights], seed=1, stopping_strategy="all_exhausted"
    )
    mixed = trainer.mixed(
        {str(n): (rows, weight) for n, (rows, weight) in enumerate(zip(sets, weights, strict=True))}
    )
    order = mixed.of_epoch(1, 0)(np.arange(count)) % len(mixed)
    found = {
        "trainer.mixed": np.searchsorted(np.cumsum(sizes), order, side="right"),
        "interleave_datasets": np.array(drawn["source"][:count]),
    }
    windows = (100, 288, 1000, 10_000)
    print("\n| largest error of a share of 0.7, over all windows of |", end="")
    print(*(f" {window:,} |" for window in windows), "\n|---|", "---:|" * len(windows), sep="")
    for name, sources in found.items():
        before = np.cumsum([0, *(sources == 0)])
        errors = [np.abs((before[w:] - before[:-w]) / w - weights[0]).max() for w in windows]
        print(f"| {name} |", *(f" {error:.4f} |" for error in errors), sep="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not folder.exists():
        folder.mkdir(parents=True)
        write(folder)

    contenders: dict[str, Callable[[], Iterable[int]]] = {
        "blocks, Parquet": partial(read_blocks, folder, "parquet"),
        "blocks, Parquet, a worker": partial(read_blocks, folder, "parquet", 1),
        "blocks, JSONL": partial(read_blocks, folder, "jsonl"),
        "lanes of unknown counts, Parquet": partial(read_lanes, folder),
        "datasets, DataLoader": partial(read_datasets, folder, streaming=False),
        "datasets, stream with a buffer": partial(read_datasets, folder, streaming=True),
    }
    if find_spec("litdata"):
        contenders["litdata, Parquet"] = partial(read_litdata, folder)
    if find_spec("streaming"):
        contenders["mosaicml-streaming, converted"] = partial(read_streaming, folder)
    for kind in ("parquet", "jsonl"):
        bytes_and_resume(folder, kind)
    shuffles(folder)
    shares()
    speeds(contenders)


if __name__ == "__main__":
    main()
