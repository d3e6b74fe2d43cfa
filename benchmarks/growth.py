"""What grows with tensors, steps, samples and files, and how fast: each measure, and its ratio to
that before.

    python benchmarks/growth.py [TABLE ...]

- worlds: milliseconds a step of a small model on so many processes under DDP, by a loop by hand and
  by ours, in turn;
- tensors: CPU milliseconds a step of a model of so many parameters, by a loop by hand and by ours,
  in turn;
- steps: Python objects and blocks of memory that live between two steps, and resident memory;
- samples: the first window of so many, in milliseconds, and the most memory that it took;
- files: milliseconds of what a start and a save do with so many checkpoints in the folder, and rows
  of metrics.jsonl.

``benchmarks/results/checkpoints.md`` has what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
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
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from trainer import Data, Task, TrainConfig, Trainer
from trainer.checkpoint import discover, store
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.launching import launch
from trainer.reporting.directory import RunDirectory
from trainer.text import columns

ROOT = Path(__file__).resolve().parent.parent
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
    model: nn.Module = Many(tensors)
    if dist.is_initialized():
        model = DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for batch in DataLoader(Numbers(2**20), BATCH, sampler=iter(range(2**20))):
        model(batch).square().backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield


def ours(
    tensors: int,
    log_every: int = 10**9,
    accel_config: str | None = None,
    folder: Path | None = None,
) -> Iterator[None]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config = TrainConfig(
            task="growth:Fitting", output_dir=f"{folder or place}/run", max_steps=10**9, micro_batch_size=BATCH, lr=LR,
            max_grad_norm=CLIP, keep_last=0, log_every=log_every,
        )  # fmt: skip
        trainer = Trainer(
            Fitting(tensors=tensors), config, launch(config, accel_config=accel_config)
        )
        yield from (None for _ in trainer.steps())
        trainer.run.close()


def milliseconds(
    work: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
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
                spent = [
                    milliseconds(lambda loop=loop: next(loop), time.process_time) for _ in range(10)
                ]
                times += [statistics.median(spent)] if number else []  # the first are warm-up
        ratio = statistics.median(b / a for a, b in zip(*taken, strict=True))
        yield [count, *map(statistics.median, taken), ratio]


def of_worlds(counts: Sequence[int], rounds: int) -> Iterator[list[float]]:
    """Yield (processes, milliseconds by hand, ours, their ratio, that of CPU time; what each
    reduces a step).
    """
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            file, found = Path(place) / "ddp.yaml", Path(place) / "found.json"
            text = (ROOT / "accel_configs" / "ddp.yaml").read_text()
            assert "num_processes: 2" in text
            file.write_text(text.replace("num_processes: 2", f"num_processes: {count}"))
            words = [
                __file__,
                "--rank_of",
                str(file),
                "--found",
                str(found),
                "--rounds",
                str(rounds),
            ]
            torchrun = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc_per_node",
                str(count),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(
                [*torchrun, *words], check=True, env=environment, stdout=subprocess.DEVNULL
            )
            yield [count, *json.loads(found.read_text())]


def as_rank(accel_config: str, found: Path, rounds: int) -> None:
    """Step both loops in turn, as one rank of a job, and write the numbers of ``of_worlds``."""
    names, block = ("by hand", "ours"), 20
    trained = ours(10, accel_config=accel_config, folder=found.parent)
    next(trained)  # which connects the ranks
    loops = dict(zip(names, (by_hand(10), trained), strict=True))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + 2):
        for name in names if number % 2 else names[::-1]:
            dist.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(block):
                next(loops[name])
            spent = torch.tensor([time.process_time() - cpu])
            dist.all_reduce(spent)  # also the end of the slowest
            taken[name] += (
                [((time.perf_counter() - began) * 1e3 / block, float(spent))] if number > 1 else []
            )
    reduced = []
    for name in names:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(block):
                next(loops[name])
        reduced.append(
            sum(e.count for e in seen.key_averages() if e.key.startswith("gloo:")) / block
        )
    pairs = [*zip(*taken.values(), strict=True)]
    wall, cpu = (statistics.median(b[at] / a[at] for a, b in pairs) for at in (0, 1))
    if dist.get_rank() == 0:
        medians = [statistics.median(one for one, _ in taken[name]) for name in names]
        found.write_text(json.dumps([*medians, wall, cpu, *reduced]))
    dist.barrier()
    trained.close()


def of_steps(counts: Sequence[int]) -> Iterator[list[float]]:
    """Yield (steps done, each of them logged, objects that live, blocks of Python's allocator,
    resident MiB).
    """
    loop, done = ours(2, log_every=1), 0
    for count in counts:
        for _ in range(count - done):
            next(loop)
        done = count
        gc.collect()
        yield [
            count,
            len(gc.get_objects()),
            sys.getallocatedblocks(),
            psutil.Process().memory_info().rss / 2**20,
        ]


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
    """Yield (checkpoints and rows, milliseconds of: the names, an inspection of all, pruning,
    cutting rows).
    """
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkpoints"
            for step in range(1, count + 1):
                path = folder / store.name_of(step)
                path.mkdir(parents=True)
                manifest = {
                    "format": discover.FORMAT,
                    "version": discover.VERSION,
                    "step": step,
                    "files": {},
                }
                (path / discover.MANIFEST).write_text(discover.sealed(manifest))
            rows = [
                json.dumps({"step": step, "loss": 0.5, "lr": 1e-3, "grad_norm": 1.0})
                for step in range(count)
            ]
            (Path(place) / "metrics.jsonl").write_text("\n".join(rows) + "\n")
            directory = RunDirectory(place, main=True)
            yield [
                count,
                milliseconds(lambda folder=folder: discover.named(folder)),
                milliseconds(lambda folder=folder: discover.listing(folder)),
                milliseconds(
                    lambda folder=folder, count=count: store.prune(
                        folder, keep_last=count, keep_every=None, pinned=()
                    )
                ),
                milliseconds(
                    lambda directory=directory, count=count: directory.cut_rows(count - 2)
                ),
            ]


def show(title: str, names: Sequence[str], rows: Iterator[list[float]]) -> None:
    """Print a table, each value with its ratio to the one above."""
    cells, before = [[title, *names]], None
    for first, *values in rows:
        ratios = (
            [f" ({b / a:.2f})" for a, b in zip(before, values, strict=True)]
            if before
            else [""] * len(values)
        )
        cells.append(
            [
                f"{int(first):,}",
                *(f"{v:,.2f}{ratio}" for v, ratio in zip(values, ratios, strict=True)),
            ]
        )
        before = values
    print("\n".join(columns(cells)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=10_000, help="tensors, and files")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "tables", nargs="*", help="worlds, tensors, steps, samples, files; by default all"
    )
    parser.add_argument("--rank_of", help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return as_rank(args.rank_of, args.found, args.rounds)
    powers = [10**n for n in range(1, 10) if 10**n <= args.most]
    worlds = [
        "by hand, ms",
        "ours, ms",
        "ours / by hand",
        "of CPU time",
        "reduced by hand",
        "by ours",
    ]
    tables = {
        "worlds": (worlds, of_worlds([2, 3, 4, 8], 6 * args.rounds)),
        "tensors": (["by hand, ms", "ours, ms", "ours / by hand"], of_tensors(powers, args.rounds)),
        "steps": (
            ["objects", "blocks", "resident MiB"],
            of_steps([args.steps // 100, args.steps // 10, args.steps]),
        ),
        "samples": (["first window, ms", "peak KiB"], of_samples([10**n for n in range(3, 10)])),
        "files": (["names, ms", "inspected, ms", "pruned, ms", "rows cut, ms"], of_files(powers)),
    }
    for title in args.tables or tables:
        names, rows = tables[title]
        with open(os.devnull, "w") as nowhere:
            found = []
            with contextlib.redirect_stdout(nowhere):
                found.extend(rows)
        show(title, names, iter(found))


if __name__ == "__main__":
    main()
