"""The data of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from layouts import Numbers, layout

from trainer import Data, Task, TrainConfig
from trainer.building.data import build_data


@pytest.fixture
def algorithms_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.usefixtures("algorithms_of_torch")
def test_deterministic_fills_no_memory_that_is_written_anyway() -> None:
    """torch's default writes NaN into each new buffer."""

    class Counting(Task):
        def build_data(self) -> Data:
            return Data(train=Numbers(4))

    config = TrainConfig(task="m:T", max_steps=1, deterministic=True)
    build_data(Counting(), config, layout(), {}, pin_memory=False)
    assert torch.are_deterministic_algorithms_enabled() and not torch.empty(1000).isnan().all()
    assert not torch.utils.deterministic.fill_uninitialized_memory
