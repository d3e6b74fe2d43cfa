"""What every strategy has in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import FOUR_GPUS, launched, plan, request

from trainer.strategies import strategy_class
from trainer.strategies.ddp import DDP


@pytest.mark.parametrize(
    ("strategy", "settings", "on_cpu"),
    [
        ("ddp", {}, False),
        ("fsdp", {"fsdp": {"cpu_offload": False}}, False),
        ("fsdp", {"fsdp": {"cpu_offload": True}}, True),
        ("zero2", {}, False),
        (
            "zero2",
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
                }
            },
            True,
        ),
        (
            "zero2",
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}
                }
            },
            False,
        ),
    ],
)
def test_strategies_say_where_the_optimizer_steps(
    strategy: str, settings: dict[str, Any], on_cpu: bool
) -> None:
    made = plan(request(strategy, **settings), launcher=launched(4), machine=FOUR_GPUS)
    assert strategy_class(strategy).steps_on_cpu(made) is on_cpu


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
