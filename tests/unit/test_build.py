"""Parts of a training, and a model's tensors as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import Numbers, layout

from trainer import Data, Task, TrainConfig
from trainer.build import build_data
from trainer.strategies.ddp import DDP


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
    assert torch.are_deterministic_algorithms_enabled() and torch.empty(3).isfinite().all()
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("main", [True, False])
def test_only_the_process_that_writes_copies_the_model_to_the_host(main: bool) -> None:
    class OnDevice(torch.Tensor):
        copies = 0

        def to(self, device: Any) -> Any:
            OnDevice.copies += str(device) == "cpu"
            return self

        @property
        def device(self) -> Any:
            return "cuda:0"

    OnDevice.copies = 0
    strategy = DDP.__new__(DDP)
    strategy.accelerator = SimpleNamespace(is_main_process=main)  # type: ignore[assignment]
    strategy._names = {"weight": ((2, 2), torch.float32)}
    buffer = torch.ones(4).as_subclass(OnDevice)
    assert strategy.gather("weight", buffer).shape == (2, 2)
    assert OnDevice.copies == main
