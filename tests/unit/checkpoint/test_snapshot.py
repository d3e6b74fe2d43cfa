"""What a save copies to host memory: buffers that stay from one save to the next, and no copy of
stale bytes.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import layout
from one_process import checkpoint, fit
from torch import Tensor

from trainer import Callback, Run, StepInfo
from trainer.checkpoint import host_memory, saver, snapshot
from trainer.checkpoint.discover import inspect
from trainer.checkpoint.host_memory import HostMemory


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("in_background", [True, False])
def test_every_save_has_the_bytes_of_its_step_in_the_same_buffers(
    in_background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[dict[str, int]] = []
    real = saver.Snapshot.write

    def write(self: saver.Snapshot, folder: Path) -> Any:
        kept = [
            (key, tensor) for key, tensor in self.pieces if not key.startswith(("rng.", "user/"))
        ]
        places.append({key: tensor.data_ptr() for key, tensor in kept})
        return real(self, folder)

    class Weights(Callback):
        def on_step(self, run: Run, info: StepInfo) -> None:
            parts = [shard.tensor for shard in run.strategy.shards()]
            seen[info.step] = torch.cat(parts).clone()

    seen: dict[int, Tensor] = {}
    monkeypatch.setattr(saver.Snapshot, "write", write)
    trainer = fit(tmp_path, None, Weights(), save_in_background=in_background)
    assert len(places) == 4 and all(later == places[0] for later in places)
    own = {shard.tensor.data_ptr() for shard in trainer.strategy.shards()}
    assert own.isdisjoint(places[0].values()) == in_background, (
        "only a save that training waits for needs no copy"
    )
    for step in (2, 4, 6, 8):
        store = inspect(checkpoint(tmp_path, step)).open().ranges
        written = [store.whole("parameter", shard.name) for shard in trainer.strategy.shards()]
        assert torch.equal(torch.cat(written), seen[step])
    assert not torch.equal(seen[2], seen[4])


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU, and records what is copied from it."""

    is_cuda = True
    calls: list[str] = []  # noqa: RUF012  (one list for all, as there is one device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.copy_:
            cls.calls.append(f"copy {kwargs}")
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_copies_from_a_gpu_go_to_page_locked_memory_and_are_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked: list[int] = []

    def lock_pages(block: Tensor) -> bool:
        locked.append(block.nbytes)
        return True

    monkeypatch.setattr(host_memory, "lock_pages", lock_pages)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: OnGpu.calls.append("synchronize"))
    monkeypatch.setattr(snapshot.rng, "read", dict)
    weight, step, offloaded = torch.arange(6.0), torch.tensor(3.0), torch.arange(4.0)
    pieces: Any = [
        ("parameter/w/0", weight.as_subclass(OnGpu)),
        ("optimizer.step/w/0", step.as_subclass(OnGpu)),
        ("parameter/o/0", offloaded),
    ]
    parts: Any = SimpleNamespace(
        layout=layout(),
        strategy=SimpleNamespace(
            accelerator=SimpleNamespace(device=torch.device("cuda")),
            plan=SimpleNamespace(strategy="ddp"),
        ),
        buffer_pieces=lambda: iter([]),
        step=1, rank=0, world_size=1, counters={"samples": 8}, callbacks=[],
    )  # fmt: skip
    memory = HostMemory(print)
    for round_ in range(2):
        OnGpu.calls.clear()
        weight += 1
        taken = snapshot.take(parts, pieces, {}, {}, memory, copied=False)
        assert OnGpu.calls == ["copy {'non_blocking': True}"] * 2 + ["synchronize"], round_
        found = dict(taken.pieces)
        assert type(found["parameter/w/0"]) is Tensor and torch.equal(
            found["parameter/w/0"], weight
        )
        assert (
            found["optimizer.step/w/0"].shape == ()
            and found["parameter/o/0"].data_ptr() == offloaded.data_ptr()
        )
    assert locked == [512], "one block for both, made once; what lies in host memory needs none"
    taken = snapshot.take(parts, pieces, {}, {}, memory, copied=True)
    assert locked == [512] and taken.pieces[2][1].data_ptr() != offloaded.data_ptr()
