"""DDP: whose call exchanges gradients, whose attributes are seen, what a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plans import plan, request
from torch import Tensor, nn

from trainer.strategies.ddp import DDP, DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = "of the model"
        self.layer = nn.Linear(2, 2)

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.layer(value)
        return output

    def generate(self) -> str:
        return "text"


@pytest.fixture
def wrapped() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(Model())
    dist.destroy_process_group()


def strategy(name: str = "ddp", **settings: Any) -> DDP:
    accelerator: Any = SimpleNamespace(process_index=1, num_processes=2, device="cpu")
    world = 1 if name == "single" else 2
    return DDP(plan(request(name), world=world, **settings), accelerator)


def test_attributes_are_those_of_the_model(wrapped: DistributedDataParallel) -> None:
    assert wrapped.config == "of the model" and wrapped.generate() == "text"
    with pytest.raises(AttributeError, match="missing"):
        wrapped.missing  # noqa: B018


def test_a_step_that_did_not_call_the_wrapper_exchanged_nothing(
    wrapped: DistributedDataParallel,
) -> None:
    ddp = strategy()
    ddp.model = wrapped
    wrapped.module(torch.ones(1, 2))
    reason = "training_step did not call the model that it was given, so no gradient was averaged"
    assert ddp.missed_exchange().startswith(reason)
    with torch.no_grad():
        wrapped.eval()(torch.ones(1, 2))
    assert ddp.missed_exchange().startswith(reason), "an evaluation exchanges nothing"
    for mode in (True, False):
        wrapped.train(mode)(torch.ones(1, 2)).sum().backward()
        assert ddp.missed_exchange() == ""
    assert ddp.missed_exchange().startswith(reason), "each step is looked at"


def test_a_step_whose_last_call_went_past_the_wrapper_exchanged_nothing(
    wrapped: DistributedDataParallel,
) -> None:
    ddp = strategy()
    ddp.model = wrapped
    with wrapped.no_sync():
        wrapped(torch.ones(1, 2)).sum().backward()
    wrapped.module(torch.ones(1, 2)).sum().backward()
    assert ddp.missed_exchange().startswith("training_step did not call the model")
