"""Host memory of snapshots: a few blocks of the size that is needed, locked where it can be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.checkpoint.host_memory import HostMemory, lock_pages


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnGpu)


class Locker:
    """Stands for CUDA: records which blocks are locked and released.

    Args:
        limit: more bytes than this cannot be locked.
    """

    def __init__(self, limit: int = 2**60) -> None:
        self.limit = limit
        self.locked: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.launched = 0

    def cudaHostRegister(self, place: int, count: int, flags: int) -> int:
        self.calls.append(("lock", count))
        if count > self.limit:
            return 2
        self.locked[place] = count
        return 0

    def cudaHostUnregister(self, place: int) -> int:
        self.calls.append(("release", self.locked.pop(place)))
        return 0


@pytest.fixture
def said() -> list[str]:
    return []


def made(monkeypatch: pytest.MonkeyPatch, said: list[str], locker: Locker) -> HostMemory:
    ones = torch.ones

    def launch(*shape: Any, device: Any = None) -> Tensor:
        if device != "cuda":
            return ones(*shape)
        locker.launched += 1
        raise RuntimeError("out of memory")  # what CUDA says once more

    monkeypatch.setattr(torch.cuda, "cudart", lambda: locker)
    monkeypatch.setattr(torch, "ones", launch)
    return HostMemory(said.append)


MILLION = 10**6
STATE = {
    "weight": torch.arange(3.0 * MILLION).reshape(3, MILLION),
    "moment": torch.arange(5.0),
    "step": torch.tensor(7.0),
    "mask": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 4),
    "half": torch.arange(7, dtype=torch.bfloat16),
}


def state(**more: Tensor) -> list[tuple[str, Tensor]]:
    return [(key, on_gpu(tensor)) for key, tensor in {**STATE, **more}.items()]


def test_one_block_of_the_size_that_is_needed_holds_all(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    locker = Locker()
    memory = made(monkeypatch, said, locker)
    places = memory.places(state())
    for key, place in places.items():
        place.copy_(STATE[key])
    assert all(torch.equal(places[key], STATE[key]) for key in STATE), "none overlaps another"
    assert all(place.is_contiguous() and not place.is_cuda for place in places.values())

    [(what, count)] = locker.calls
    needed = sum(tensor.nbytes for tensor in STATE.values())
    assert what == "lock" and needed <= count <= needed + 256 * len(STATE)
    again = memory.places(state())
    assert {k: p.data_ptr() for k, p in again.items()} == {
        k: p.data_ptr() for k, p in places.items()
    }
    assert len(locker.calls) == 1 and said == []


def test_state_that_appears_later_gets_blocks_of_its_own_and_then_all_are_replaced(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    locker = Locker()
    memory = made(monkeypatch, said, locker)
    memory.places(state())
    memory.places(state(a=torch.ones(100)))
    memory.places(state(a=torch.ones(100), b=torch.ones(200)))
    assert [what for what, _ in locker.calls] == ["lock"] * 3

    places = memory.places(state(a=torch.ones(300), b=torch.ones(200)))
    assert [what for what, _ in locker.calls[3:]] == ["release"] * 3 + ["lock"]
    assert len(locker.locked) == 1 and set(places) == {*STATE, "a", "b"}
    assert places["a"].shape == (300,)


def test_where_pages_cannot_be_locked_memory_is_taken_without_and_said_once(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    locker = Locker(limit=1000)
    memory = made(monkeypatch, said, locker)
    places = memory.places(state())
    assert places["weight"].shape == (3, MILLION)
    memory.places(state(a=torch.ones(100)))
    assert said == [
        "11.4 MiB of host memory for checkpoints cannot be page-locked: training waits longer for "
        "each save; raise the limit (ulimit -l unlimited, or the container's)"
    ]
    assert [what for what, _ in locker.calls] == ["lock"], "it is not tried again"
    assert locker.launched == 1, "what CUDA reports once more is taken away"
    for more in (200, 300, 400):  # and nothing is released that was not locked
        memory.places(state(a=torch.ones(more)))
    assert not [what for what, _ in locker.calls if what == "release"]


def test_an_error_of_cuda_is_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise RuntimeError("no CUDA here")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=refuse))
    assert lock_pages(torch.empty(4, dtype=torch.uint8)) is False


def test_tensors_in_host_memory_get_places_that_are_not_locked(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    locker = Locker()
    memory = made(monkeypatch, said, locker)
    first = memory.places([("a", torch.ones(3)), ("b", on_gpu(torch.ones(4)))])
    assert first["a"].data_ptr() != STATE["weight"].data_ptr() and len(locker.calls) == 1
    second = memory.places([("a", torch.ones(3)), ("b", on_gpu(torch.ones(4)))])
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert memory.places([("a", torch.ones(5))])["a"].shape == (5,)
    assert locker.calls == [("lock", 256)], "16 bytes take one place"
