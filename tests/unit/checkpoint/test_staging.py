"""Reading files onto a GPU: no block is written again before its copy is done.

A fake GPU stands for CUDA. Its work runs as late as the host allows: where it waits for an event,
else at the very end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.checkpoint import ranges as ranges_module
from trainer.checkpoint import staging
from trainer.checkpoint.ranges import Key, Ranges, of_rank_files, write_pieces
from trainer.errors import CheckpointError
from trainer.strategies.tensor_parallel import Columns

BLOCK = 1024


class Gpu:
    """Work in order, and what was done to the host's memory.

    Args:
        may_lock: whether host memory can be page-locked.
    """

    def __init__(self, *, may_lock: bool = True) -> None:
        self.may_lock = may_lock
        self.work: list[Callable[[], object]] = []
        self.done = 0
        self.calls: list[str] = []

    def queue(self, piece: Callable[[], object]) -> None:
        self.work.append(piece)

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.work[self.done - 1]()

    def synchronize(self) -> None:
        self.run(len(self.work))

    def cudaHostRegister(self, place: int, count: int, flags: int) -> int:
        self.calls.append(f"lock {count}")
        return 0 if self.may_lock else 2

    def cudaHostUnregister(self, place: int) -> int:
        assert self.done == len(self.work), "memory is unlocked that the GPU still copies from"
        self.calls.append("unlock")
        return 0


class Event:
    """An event of the fake GPU: what was queued before it was recorded."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.recorded = gpu, 0

    def record(self, stream: Gpu) -> None:
        self.recorded = len(stream.work)

    def synchronize(self) -> None:
        self.gpu.run(self.recorded)


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU; copies to it are queued there."""

    is_cuda = True
    device = torch.device("cuda", 0)
    gpu: Gpu

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not Tensor.copy_:
            return super().__torch_function__(function, types, args, kwargs)

        target, source = (tensor.as_subclass(Tensor) for tensor in args)
        waits = not isinstance(args[1], OnGpu) and not (kwargs or {}).get("non_blocking")
        cls.gpu.queue(lambda: target.copy_(source))
        if waits:  # a copy from memory that is not locked
            cls.gpu.synchronize()
        return args[0]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake = Gpu()
    monkeypatch.setattr(OnGpu, "gpu", fake, raising=False)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(fake))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: fake)
    for module in (staging, ranges_module):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    return fake


def on_gpu(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((numel,), -1, dtype=dtype).as_subclass(OnGpu)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def stored(folder: Path, **tensors: Tensor) -> Ranges:
    path = folder / "tensors.safetensors"
    write_pieces(path, [(str(Key("parameter", name)), tensor) for name, tensor in tensors.items()])
    return of_rank_files([path])


VALUES = torch.arange(4096.0)  # sixteen blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_the_gpu_gets_is_what_the_file_holds(
    gpu: Gpu, tmp_path: Path, dtype: torch.dtype
) -> None:
    ranges = stored(tmp_path, weight=VALUES, bias=VALUES[:7] + 0.5)
    weight, bias = on_gpu(4000, dtype), on_gpu(7, dtype)
    with ranges.kept_open():
        ranges.read("parameter", "weight", 96, weight)
        ranges.read("parameter", "bias", 0, bias)
        assert gpu.done < len(gpu.work), "the host does not wait for the last copies"
    assert torch.equal(plain(weight), VALUES[96:].to(dtype))
    assert torch.equal(plain(bias), (VALUES[:7] + 0.5).to(dtype))
    assert gpu.calls == [f"lock {2 * BLOCK}", "unlock"]


def test_columns_of_a_matrix_are_selected_on_the_gpu(gpu: Gpu, tmp_path: Path) -> None:
    ranges = stored(tmp_path, weight=VALUES)
    out = on_gpu(64 * 20)
    with ranges.kept_open():
        ranges.read("parameter", "weight", 5, out, Columns(20, 64))
    assert torch.equal(plain(out), VALUES.view(64, 64)[:, 5:25].reshape(-1))


def test_without_the_event_blocks_would_be_overwritten(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Event, "synchronize", lambda _: None)
    out = on_gpu(4096)
    ranges = stored(tmp_path, weight=VALUES)
    with ranges.kept_open():
        ranges.read("parameter", "weight", 0, out)
    last = VALUES[-512:]  # of both blocks
    assert torch.equal(plain(out), last.repeat(8)), "each part holds what was read last"


def test_one_block_is_read_into_while_the_other_is_copied(gpu: Gpu, tmp_path: Path) -> None:
    ranges = stored(tmp_path, weight=VALUES)
    behind = []
    begin = staging.Staging.block

    def block(self: Any, count: int, dtype: torch.dtype) -> Tensor:
        found = begin(self, count, dtype)
        behind.append(len(gpu.work) - gpu.done)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging.Staging, "block", block)
        with ranges.kept_open():
            ranges.read("parameter", "weight", 0, on_gpu(4096))
    # Of each block a copy, and one to its place; what is behind a copy's event may run later.
    assert behind[0] == 0 and min(behind[1:]) >= 2


def test_where_pages_cannot_be_locked_files_are_read_as_before(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.may_lock = False
    monkeypatch.setattr(torch, "ones", lambda *_, device: None)
    ranges = stored(tmp_path, weight=VALUES, other=VALUES)
    weight, other = on_gpu(4096), on_gpu(4096, torch.float64)
    with ranges.kept_open():
        ranges.read("parameter", "weight", 0, weight)
        ranges.read("parameter", "other", 0, other)
    assert torch.equal(plain(weight), VALUES) and torch.equal(plain(other), VALUES.double())
    assert gpu.calls == [f"lock {2 * BLOCK}"], "it is tried once, and nothing is unlocked"


@pytest.mark.parametrize("kept_open", [True, False])
def test_what_is_not_for_a_gpu_or_read_alone_takes_no_blocks(
    gpu: Gpu, tmp_path: Path, kept_open: bool
) -> None:
    ranges = stored(tmp_path, weight=VALUES)
    if kept_open:
        out = torch.empty(4096, dtype=torch.float64)  # on the CPU, converted
        with ranges.kept_open():
            ranges.read("parameter", "weight", 0, out)
    else:
        out = on_gpu(4096)
        ranges.read("parameter", "weight", 0, out)
    assert torch.equal(plain(out), VALUES.to(out.dtype)) and gpu.calls == []


def test_a_row_that_is_longer_than_a_block_takes_none(gpu: Gpu, tmp_path: Path) -> None:
    ranges = stored(tmp_path, weight=VALUES)
    out = on_gpu(8)
    with ranges.kept_open():
        ranges.read("parameter", "weight", 2, out, Columns(4, 2048))
    assert plain(out).tolist() == [2, 3, 4, 5, 2050, 2051, 2052, 2053] and gpu.calls == []


def test_blocks_are_released_where_reading_fails(gpu: Gpu, tmp_path: Path) -> None:
    ranges = stored(tmp_path, weight=VALUES)
    path = tmp_path / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="is cut"), ranges.kept_open():
        ranges.read("parameter", "weight", 0, on_gpu(4096))
    assert gpu.calls[-1] == "unlock"
