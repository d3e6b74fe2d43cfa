"""What a checkpoint costs, beside the disk's own speed for the same bytes.

    python benchmarks/checkpoints.py [--megabytes 480] [--folder DIR]
    torchrun --nproc_per_node 2 benchmarks/checkpoints.py --accel_config accel_configs/fsdp.yaml

    ... --keep PATH, and under another layout ... --of PATH      # loading what that one wrote

Prints, for each rank: the bytes that it wrote; seconds to write and flush the same bytes raw, to
save, to resume; the stall of a background save beside a plain copy of the same memory; seconds to
read what it holds raw and to load it, out of the system's cache (of CPU time as well) and from the
disk, and what the disk gave to all ranks; the ratios of what was measured in turn, with the quarter
below and above; how much the resident memory rose while saving and loading, as a multiple of the
rank's own bytes; and the time to resume at step 10 and at step 10 million. Loading is on the page
``benchmarks/results/checkpoints.md``.

What was measured is on that page too. Building and resuming takes as much memory as the model, its
gradients and its optimizer's state: loading itself adds nothing to that. A machine that lends its
memory returns pages slowly (1 s for
480 MB was seen): so before each timed write a file of that size is written and deleted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.checkpoint import discover, restore, store
from trainer.checkpoint.optimizer_state import state_of
from trainer.launching import Launched, launch
from trainer.strategies import strategy_class

WIDTH = 1024


@dataclass(frozen=True, kw_only=True)
class Wide(Task):
    """Square layers; with Adam's state, 12 bytes a weight."""

    layers: int

    def build_data(self) -> Data:
        return Data(train=torch.randn(1000, WIDTH))

    def build_model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers)))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch).square().mean()


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def resident(key: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its peak) of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def rise(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and how far the resident memory rose above what it was before."""
    trim()  # what was freed before counts as free
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    took = seconds(work)
    return took, resident("VmHWM") - before


def raw_write(path: Path, content: list[Tensor]) -> None:
    with open(path, "wb", buffering=0) as file:
        for tensor in content:
            file.write(tensor.numpy().data)
        os.fsync(file.fileno())


def have_pages(path: Path, content: list[Tensor]) -> None:
    """Have as much memory at hand for the cache of a file: pages that a virtual machine gave back
    return slowly.
    """
    with open(path, "wb", buffering=0) as file:
        for tensor in content:
            file.write(tensor.numpy().data)
    os.unlink(path)


def trim() -> None:
    """Give freed memory back to the system, so that what is asked for next is new, as in a process
    that begins.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def raw_read(path: Path, weights: list[Tensor], state: list[Tensor]) -> None:
    """Read weights into memory that is there, and what is as large as ``state`` into new memory."""
    with open(path, "rb", buffering=0) as file:
        new = []
        for tensor in weights:
            file.readinto(tensor.view(torch.uint8).numpy().data)
        for tensor in state:
            new.append(torch.empty_like(tensor))
            file.readinto(new[-1].view(torch.uint8).numpy().data)


def held(one: Trainer) -> tuple[list[Tensor], list[Tensor]]:
    """Return copies of what this rank loads: weights, and the optimizer's state of them."""
    shards, optimizer = [*one.run.strategy.shards()], one.run.strategy.optimizer
    form = one.run.parts.optimizer_form
    state = [
        tensor for shard in shards for _, tensor in state_of(optimizer, shard, form) if tensor.dim()
    ]
    return [shard.tensor.detach().clone() for shard in shards], [
        tensor.detach().clone() for tensor in state
    ]


def forget(*paths: Path) -> None:
    """Take files out of the system's cache; they are on the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def bytes_from_disk() -> int:
    """Count what this process has had read from the disk so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def ratios(ours: list[float], raw: list[float]) -> str:
    """Compare measurements that were taken in turn: the middle of the pairs' ratios, the quarter
    below and above.
    """
    low, half, high = statistics.quantiles((a / b for a, b in zip(ours, raw, strict=True)), n=4)
    return f"{half:.2f} x ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--megabytes", type=int, default=480, help="of weights and optimizer state, of all ranks"
    )
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure; default: the system's temporary folder"
    )
    parser.add_argument("--accel_config")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="leave the checkpoint there, for --of")
    parser.add_argument("--of", type=Path, help="load this checkpoint, which another layout wrote")
    args = parser.parse_args()
    task = Wide(layers=max(1, args.megabytes * 1_000_000 // (12 * WIDTH * WIDTH)))
    config = TrainConfig(
        task="benchmark:Wide",
        max_steps=1,
        micro_batch_size=1,
        save_in_background=False,
        keep_last=2,
    )
    launched = launch(config, accel_config=args.accel_config)
    [root, *_] = _everyone(
        launched, tempfile.mkdtemp(dir=args.folder) if launched.accelerator.is_main_process else ""
    )
    try:
        measure(launched, task, config, Path(root), args)
    finally:
        launched.accelerator.wait_for_everyone()
        if launched.accelerator.is_main_process:
            shutil.rmtree(root)


def build(launched: Launched, task: Task, config: TrainConfig) -> Trainer:
    strategy = strategy_class(launched.plan.strategy)(launched.plan, launched.accelerator)
    return Trainer(task, config, replace(launched, strategy=strategy))


def begin(one: Trainer, step: int) -> None:
    """As if nothing had been saved, and this were the step."""
    if one.run.is_main:
        shutil.rmtree(one.run.saver.folder)
        one.run.saver.folder.mkdir()
    one.run.accelerator.wait_for_everyone()
    one.run.saver.last_step = None
    position = {"samples": step * one.run.plan.global_batch_size}
    one.run.position.step = step
    one.run.position.samples = one.run.train_data.restore(position)


def measure(
    launched: Launched, task: Task, config: TrainConfig, root: Path, args: argparse.Namespace
) -> None:
    one: Any = build(launched, task, replace(config, output_dir=str(root / "run")))
    rank = launched.accelerator.process_index
    for _ in one.steps():  # so that the optimizer has its state; saves step 1
        pass
    parts = one.run.parts
    pieces = [*parts.pieces(), *parts.buffer_pieces()]
    mine = [tensor.detach().clone() for _, tensor in pieces if tensor.dim()]
    own = sum(tensor.numel() * tensor.itemsize for tensor in mine)

    whole = held(one)
    raw_write(root / f"held-{rank}", [*whole[0], *whole[1]])
    raw, saved, stalls, copies, rises, reads, checks, loads = [], [], [], [], [], [], [], []
    reads_cpu, loads_cpu, cold_reads, cold_loads, from_disk = [], [], [], [], []

    def write_by_hand() -> None:
        have_pages(root / f"pages-{rank}", mine)
        launched.accelerator.wait_for_everyone()
        raw.append(seconds(lambda: raw_write(root / f"raw-{rank}", mine)))
        os.unlink(root / f"raw-{rank}")

    def save() -> None:
        begin(one, 1)
        have_pages(root / f"pages-{rank}", mine)
        launched.accelerator.wait_for_everyone()
        saved.append(seconds(one.run.save))

    def read_by_hand() -> None:
        launched.accelerator.wait_for_everyone()
        trim()
        begin = time.process_time()
        reads.append(seconds(lambda: raw_read(root / f"held-{rank}", *whole)))
        reads_cpu.append(time.process_time() - begin)
        forget(root / f"held-{rank}")
        trim()
        launched.accelerator.wait_for_everyone()
        cold_reads.append(seconds(lambda: raw_read(root / f"held-{rank}", *whole)))
        copies.append(seconds(lambda: [tensor.clone() for tensor in mine]))

    def load_and_stall() -> None:
        begin(one, 1)
        rises.append(rise(one.run.save)[1])
        info = discover.inspect(args.of or one.run.saver.folder / store.name_of(1))
        checks.append(seconds(partial(discover.verify, info)))

        def load() -> None:
            restore.load(one.run.parts, info, allow_change=True)

        def as_new() -> None:
            one.run.strategy.optimizer.state.clear()
            trim()
            launched.accelerator.wait_for_everyone()

        as_new()
        begin_cpu = time.process_time()
        loads.append(seconds(load))
        loads_cpu.append(time.process_time() - begin_cpu)
        forget(*(info.path / name for name in info.files))
        as_new()
        before = bytes_from_disk()
        cold_loads.append(seconds(load))
        from_disk.append(one.run.agreement.sum(bytes_from_disk() - before) / info.bytes)
        one.run.saver.config = replace(config, save_in_background=True)
        begin(one, 2)
        stalls.append(seconds(one.run.save))
        one.run.saver.finish()
        one.run.saver.config = replace(config, save_in_background=False)

    for one_way, other in ((write_by_hand, save), (read_by_hand, load_and_stall)):
        for number in range(args.repetitions + 1):
            for work in (one_way, other) if number % 2 else (other, one_way):
                work()
    for times in (
        raw,
        saved,
        stalls,
        copies,
        rises,
        reads,
        checks,
        loads,
        reads_cpu,
        loads_cpu,
        cold_reads,
        cold_loads,
    ):
        del times[0]  # memory and files were new
    if args.keep and one.run.is_main:
        shutil.copytree(one.run.saver.folder / store.name_of(2), args.keep)

    begin(one, 0)
    places = (10, 10_000_000)
    for step in places:
        position = {"samples": step * one.run.plan.global_batch_size}
        one.run.position.step = step
        one.run.position.samples = one.run.train_data.restore(position)
        one.run.save()
    one.close()  # Accelerate's clipping takes the only model that it has prepared
    one = None  # and its memory
    mine.clear()
    resumed = []
    for step in places:
        path = root / "run" / "checkpoints" / f"step-{step:08d}"
        settings = {
            "output_dir": str(root / f"from-{step}"),
            "resume": str(path),
            "max_steps": step + 1,
        }

        def resume(settings: dict[str, Any] = settings) -> None:
            two = build(
                launched, task, replace(config, keep_last=0, allow_config_change=True, **settings)
            )
            next(iter(two.steps()))
            two.run.close()

        resumed.append(rise(resume))

    middle = statistics.median
    size = sum(tensor.nbytes for tensors in whole for tensor in tensors)
    told = (
        f"rank {rank}: {own / 1e6:.0f} MB of its own\n"
        f"  write and flush  raw {middle(raw):.2f} s, save {middle(saved):.2f} s: {ratios(saved, raw)}\n"
        f"  stall            copy {middle(copies):.3f} s, background save {middle(stalls):.3f} s: "
        f"{ratios(stalls, copies)}\n"
        f"  load             {size / 1e6:.0f} MB, raw {middle(reads):.3f} s, loading {middle(loads):.3f} s: "
        f"{ratios(loads, reads)}, of CPU time {ratios(loads_cpu, reads_cpu)}; checksums {middle(checks):.3f} s\n"
        f"  not in the cache raw {middle(cold_reads):.3f} s, loading {middle(cold_loads):.3f} s: "
        f"{ratios(cold_loads, cold_reads)}; read from the disk {middle(from_disk):.2f} x the checkpoint\n"
        f"  memory           saving +{middle(rises) / own:.2f} x, building and resuming "
        f"+{resumed[0][1] / own:.2f} x of its own bytes\n"
        f"  resume           at step 10 {resumed[0][0]:.2f} s, at step 10,000,000 {resumed[1][0]:.2f} s"
    )
    for line in _everyone(launched, told):
        launched.accelerator.print(line)


def _everyone(launched: Launched, value: str) -> list[str]:
    from trainer.distributed.agreement import Agreement

    return Agreement().gather(value)


if __name__ == "__main__":
    trainer.run_and_exit(main)
