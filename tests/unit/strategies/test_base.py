"""What every strategy has in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer import DataError
from trainer.losses import explained
from trainer.strategies.ddp import DDP
from trainer.strategies.fsdp import FSDP2


@pytest.mark.parametrize("kind", [DDP, FSDP2])
def test_errors_of_torch_name_the_key_to_change(kind: type[DDP | FSDP2]) -> None:
    with (
        pytest.raises(DataError, match=r"micro-batch of one row.* set drop_last: true"),
        explained(kind.known_errors),
    ):
        nn.BatchNorm1d(2)(torch.ones(1, 2))


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
