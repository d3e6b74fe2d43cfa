"""What grows with tensors, steps, samples and files, and how fast: each measure, and its ratio to that before.

    python benchmarks/growth.py

- tensors: CPU milliseconds a step of a model of so many parameters, by a loop by hand and by ours, in turn;
- steps: Python objects and blocks of memory that live between two steps, and resident memory;
- samples: the first window of so many, in milliseconds, and the most memory that it took;
- files: milliseconds of what a start and a save do with so many checkpoints in the folder, and rows of metrics.jsonl.

measured (2026-11-22, two x86 CPU cores that other jobs shared, torch 2.13; the counts are exact, the times are not):
    ours / by hand at 10, 100, 1,000 and 10,000 tensors: 1.24, 1.07, 0.93, 0.93
    objects after 200, 2,000 and 20,000 logged steps: 296,030, 296,031, 296,032; blocks 1,099,730, 1,099,946, 1,099,981
    peak of the first window: 7.6 MiB for 10**6 samples, 0.9 MiB for 10**7, 10**8 and 10**9
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trainer import Data, Task, TrainConfig, Trainer
from trainer.checkpoint import discover, store
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.reporting.directory import RunDirectory
from trainer.text import columns

BATCH, CLIP, LR = 4, 1.0, 1e-3


class Numbers(torch.utils.data.Dataset[Tensor]):
    """As many numbers as are asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index % 7))


class Many(nn.Module):
    """A sum of many small parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(count)])

    def forward(self, numbers: Tensor) -> Tensor:
        return torch.stack(tuple(self.weights)).mean() * numbers.mean()


@dataclass(frozen=True, kw_only=True)
class Fitting(Task):
    """Bring the sum to nothing."""

    tensors: int

    def build_data(self) -> Data:
        return Data(train=Numbers(2**20))

    def build_model(self) -> nn.Module:
        return Many(self.tensors)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch).square()


def by_hand(tensors: int) -> Iterator[None]:
    model = Many(tensors)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for batch in DataLoader(Numbers(2**20), BATCH, sampler=iter(range(2**20))):
        model(batch).square().backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield


def ours(tensors: int, log_every: int = 10**9) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as place:
        config = TrainConfig(
            task="growth:Fitting", output_dir=f"{place}/run", max_steps=10**9, micro_batch_size=BATCH, lr=LR,
            max_grad_norm=CLIP, keep_last=0, log_every=log_every,
        )  # fmt: skip
        trainer = Trainer(Fitting(tensors=tensors), config)
        yield from (None for _ in trainer.steps())
        trainer.close()


def milliseconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    work()
    return (clock() - began) * 1e3


def of_tensors(counts: Sequence[int], rounds: int) -> Iterator[list[float]]:
    """Yield (tensors, milliseconds by hand, ours, their ratio)."""
    for count in counts:
        loops = [by_hand(count), ours(count)]
        taken: list[list[float]] = [[], []]
        for number in range(rounds):
            for loop, times in zip(loops, taken, strict=True):
                spent = [milliseconds(lambda loop=loop: next(loop), time.process_time) for _ in range(10)]
                times += [statistics.median(spent)] if number else []  # the first are warm-up
        ratio = statistics.median(b / a for a, b in zip(*taken, strict=True))
        yield [count, *map(statistics.median, taken), ratio]


def of_steps(counts: Sequence[int]) -> Iterator[list[float]]:
    """Yield (steps done, each of them logged, objects that live, blocks of Python's allocator, resident MiB)."""
    loop, done = ours(2, log_every=1), 0
    for count in counts:
        for _ in range(count - done):
            next(loop)
        done = count
        gc.collect()
        yield [count, len(gc.get_objects()), sys.getallocatedblocks(), psutil.Process().memory_info().rss / 2**20]


def of_samples(counts: Sequence[int]) -> Iterator[list[float]]:
    """Yield (samples, milliseconds to the first window, the most KiB that Python and numpy had)."""
    layout = Layout(rank=1, world_size=8, micro_batch_size=32, accumulation_steps=2)

    def first(count: int) -> None:
        next(IndexedData(Numbers(count), layout, seed=0).windows(0, 1))

    for count in counts:
        spent = milliseconds(lambda count=count: first(count))
        tracemalloc.start()
        first(count)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield [count, spent, peak / 1024]


def of_files(counts: Sequence[int]) -> Iterator[list[float]]:
    """Yield (checkpoints and rows, milliseconds of: the names, an inspection of all, pruning, cutting rows)."""
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkpoints"
            for step in range(1, count + 1):
                path = folder / store.name_of(step)
                path.mkdir(parents=True)
                manifest = {"format": discover.FORMAT, "version": discover.VERSION, "step": step, "files": {}}
                (path / discover.MANIFEST).write_text(discover.sealed(manifest))
            rows = [json.dumps({"step": step, "loss": 0.5, "lr": 1e-3, "grad_norm": 1.0}) for step in range(count)]
            (Path(place) / "metrics.jsonl").write_text("\n".join(rows) + "\n")
            directory = RunDirectory(place, main=True)
            yield [
                count,
                milliseconds(lambda folder=folder: discover.named(folder)),
                milliseconds(lambda folder=folder: discover.listing(folder)),
                milliseconds(
                    lambda folder=folder, count=count: store.prune(folder, keep_last=count, keep_every=None, pinned=())
                ),
                milliseconds(lambda directory=directory, count=count: directory.cut_rows(count - 2)),
            ]


def show(title: str, names: Sequence[str], rows: Iterator[list[float]]) -> None:
    """Print a table, each value with its ratio to the one above."""
    cells, before = [[title, *names]], None
    for first, *values in rows:
        ratios = [f" ({b / a:.2f})" for a, b in zip(before, values, strict=True)] if before else [""] * len(values)
        cells.append([f"{int(first):,}", *(f"{v:,.2f}{ratio}" for v, ratio in zip(values, ratios, strict=True))])
        before = values
    print("\n".join(columns(cells, left=1)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10_000, help="tensors, and files")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    powers = [10**n for n in range(1, 10) if 10**n <= args.most]
    tables = {
        "tensors": (["by hand, ms", "ours, ms", "ours / by hand"], of_tensors(powers, args.rounds)),
        "steps": (["objects", "blocks", "resident MiB"], of_steps([args.steps // 100, args.steps // 10, args.steps])),
        "samples": (["first window, ms", "peak KiB"], of_samples([10**n for n in range(3, 10)])),
        "files": (["names, ms", "inspected, ms", "pruned, ms", "rows cut, ms"], of_files(powers)),
    }
    for title, (names, rows) in tables.items():
        with open(os.devnull, "w") as nowhere:
            found = []
            with contextlib.redirect_stdout(nowhere):
                found.extend(rows)
        show(title, names, iter(found))


if __name__ == "__main__":
    main()
