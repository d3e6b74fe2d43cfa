"""What a save copies to host memory: buffers that stay from one save to the next, and no copy of
stale bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit
from torch import Tensor

from trainer import Callback, Run, StepInfo
from trainer.checkpoint import saver
from trainer.checkpoint.discover import inspect


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
