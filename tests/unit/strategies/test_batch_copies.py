"""Batches are copied on a stream of their own: complete when read, and not overwritten before.

A fake GPU stands for CUDA. Kernels run at the very end; copies run either at once or as late as
their stream is waited for, and CUDA may do anything between. Memory that is freed goes to the next
copy, as torch's allocator gives it away.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.strategies import batch_copies
from trainer.strategies.batch_copies import BatchCopies, is_on_host
from trainer.strategies.ddp import DDP

GPU = torch.device("cuda", 0)


class Stream:
    """Work in order.

    Args:
        eager: run each piece when it is queued, else when somebody waits for it.
    """

    def __init__(self, name: str, *, eager: bool = False) -> None:
        self.name, self.eager = name, eager
        self.work: list[Callable[[], object]] = []
        self.done = 0
        self.waits: list[str] = []

    def queue(self, piece: Callable[[], object]) -> None:
        self.work.append(piece)
        if self.eager:
            self.run(len(self.work))

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other.name)
        queued = len(other.work)
        self.queue(lambda: other.run(queued))

    def run(self, until: int) -> None:
        """Run the first ``until`` pieces of all that was ever queued."""
        while self.done < until:
            self.done += 1
            self.work[self.done - 1]()


class Gpu:
    """Two streams, and an allocator that gives freed blocks to the next copy."""

    def __init__(self, *, copies_at_once: bool) -> None:
        self.computing, self.copying = Stream("computing"), Stream("copying", eager=copies_at_once)
        self.current = self.computing
        self.free: list[Tensor] = []
        self.block_of: dict[int, Tensor] = {}
        self.recorded: dict[int, list[str]] = {}

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def send(self, batch: Any, device: torch.device, *, non_blocking: bool) -> Any:
        """Stand for Accelerate's ``send_to_device``."""
        assert device == GPU and non_blocking
        if isinstance(batch, dict):
            return {
                name: self.send(value, device, non_blocking=True) for name, value in batch.items()
            }
        if not isinstance(batch, Tensor):
            return batch
        block = self.free.pop() if self.free else torch.full_like(batch, -1)
        self.current.queue(lambda: block.copy_(batch))
        sent = Sent(block)
        self.block_of[id(sent)] = block
        weakref.finalize(sent, self._freed, id(sent))
        return sent

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        self.recorded.setdefault(id(tensor), []).append(stream.name)

    def _freed(self, number: int) -> None:
        block = self.block_of.pop(number)
        if self.recorded.pop(number, None):
            # Free when the work that is queued by now has run.
            self.computing.queue(lambda: self.free.append(block))
        else:
            self.free.append(block)

    def read(self, sent: Tensor, seen: list[float]) -> None:
        """Queue a kernel that reads a tensor: it knows the memory, not Python's object."""
        block = self.block_of[id(sent)]
        self.computing.queue(lambda: seen.append(float(block[0])))


class Sent(Tensor):
    """A tensor that says that it is on the GPU."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture
def copies_at_once() -> bool:
    return True


@pytest.fixture
def gpu(copies_at_once: bool, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake = Gpu(copies_at_once=copies_at_once)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: fake.copying)
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: fake.current)
    monkeypatch.setattr(batch_copies, "send_to_device", fake.send)
    monkeypatch.setattr(Sent, "record_stream", fake_record(fake), raising=False)
    return fake


def fake_record(fake: Gpu) -> Callable[[Tensor, Stream], None]:
    return lambda tensor, stream: fake.record_stream(tensor, stream)


def train(fake: Gpu, batches: int) -> list[float]:
    """Send and read batches without ever waiting; return what the kernels have read in the end."""
    copies, seen = BatchCopies(GPU), list[float]()
    for number in range(batches):
        sent = copies.send({"x": torch.full((4,), float(number)), "name": "text"})
        fake.read(sent["x"], seen)
        del sent
    fake.computing.run(len(fake.computing.work))
    return seen


@pytest.mark.parametrize("copies_at_once", [True, False])
def test_every_batch_is_complete_when_it_is_read_and_whole_until_then(gpu: Gpu) -> None:
    assert train(gpu, 4) == [0.0, 1.0, 2.0, 3.0]


def test_memory_is_used_again_once_it_was_read(gpu: Gpu) -> None:
    train(gpu, 3)
    assert len(gpu.free) == 3
    assert train(gpu, 3) == [0.0, 1.0, 2.0] and len(gpu.free) == 3


def test_the_copy_waits_for_nothing(gpu: Gpu) -> None:
    train(gpu, 2)
    assert gpu.copying.waits == [] and gpu.computing.waits == ["copying", "copying"]


def test_without_the_record_a_batch_would_be_overwritten(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "record_stream", lambda *_: None)
    assert train(gpu, 4) == [3.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize("copies_at_once", [False])
def test_without_the_wait_a_batch_would_be_read_too_early(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.computing, "wait_stream", lambda _: None)
    assert train(gpu, 2) == [-1.0, -1.0]


class Opaque:
    """Something that can be sent, and hides its tensors."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Opaque:
        return self


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        (torch.zeros(2), True),
        ({"x": [torch.zeros(2), (torch.ones(1), "text", None, 3)]}, True),
        (torch.zeros(2, device="meta"), False),
        (torch.zeros(2).to_sparse(), False),
        (torch.nn.Parameter(torch.zeros(2)), False),
        ([torch.zeros(2), Opaque()], False),
    ],
    ids=["tensor", "nested", "elsewhere", "sparse", "subclass", "opaque"],
)
def test_only_plain_tensors_of_the_host_take_the_stream(
    batch: Any, seen: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_on_host(batch) is seen
    used: list[str] = []
    monkeypatch.setattr(
        batch_copies, "send_to_device", lambda *_, **__: used.append(gpu.current.name)
    )
    BatchCopies(GPU).send(batch)
    assert used == ["copying" if seen else "computing"]


def test_strategies_send_batches_that_way_on_a_gpu_alone(gpu: Gpu) -> None:
    on_gpu = DDP(SimpleNamespace(), SimpleNamespace(device=GPU))  # type: ignore[arg-type]
    for number in range(2):
        sent = on_gpu.to_device({"x": torch.full((4,), float(number))})
        assert type(sent["x"]) is Sent
    assert gpu.computing.waits == ["copying", "copying"]

    on_cpu = DDP(SimpleNamespace(), SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
    batch = {"x": torch.zeros(4)}
    assert on_cpu.to_device(batch)["x"] is batch["x"] and len(gpu.computing.waits) == 2
