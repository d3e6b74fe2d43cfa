"""FSDP2's optimizer steps rows as ordinary tensors: the same bits, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import SGD, AdamW, Optimizer

from trainer.strategies.local_step import LocalStep


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def train(model: nn.Module, optimizer: Optimizer, local: LocalStep, steps: int) -> None:
    for number in range(steps):
        model(torch.arange(6.0).reshape(2, 3) + number).square().sum().backward()
        with local.on_rows():
            optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None


def made(kind: Any, model: nn.Module, **settings: Any) -> tuple[Any, LocalStep]:
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    return optimizer, LocalStep(optimizer)


def test_rows_are_followed_to_other_memory_and_to_other_groups() -> None:
    model = sharded()
    optimizer, local = made(SGD, model)
    train(model, optimizer, local, 1)

    weight, *others = model.parameters()
    moved: Any = weight
    moved._local_tensor = moved._local_tensor.clone()
    before = moved._local_tensor.clone()
    optimizer.param_groups[0]["params"] = others
    optimizer.add_param_group({"params": [weight], "lr": 0.5})
    weight.grad = torch.ones_like(weight)
    with local.on_rows():
        optimizer.step()
    assert torch.equal(moved._local_tensor, before - 0.5)

    # Neither another group nor another list: one parameter more in the same list.
    optimizer.param_groups.pop()
    with local.on_rows():
        optimizer.step()
    others.append(weight)
    optimizer.param_groups[0]["lr"] = 0.5
    before = moved._local_tensor.clone()
    with local.on_rows():
        optimizer.step()
    assert torch.equal(moved._local_tensor, before - 0.5)


def test_an_error_within_the_step_leaves_the_groups_as_they_were() -> None:
    model = sharded()
    optimizer, local = made(SGD, model)
    weight = next(model.parameters())
    seen: list[Any] = []

    def hook(stepping: Any, *_: Any) -> None:
        seen.extend(stepping.param_groups[0]["params"])
        raise ValueError("not today")

    optimizer.register_step_pre_hook(hook)
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="not today"), local.on_rows():
        optimizer.step()
    assert type(seen[0]) is nn.Parameter, "within the step they are ordinary tensors"
    assert seen[0].grad is None, "and no gradient is kept"
    assert optimizer.param_groups[0]["params"][0] is weight


def test_parts_of_other_placements_are_stepped_too() -> None:
    mesh = init_device_mesh("cpu", (1, 1))
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(0)]):
        parameter = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, placements))
        optimizer = AdamW([parameter], lr=0.1)
        parameter.grad = torch.ones_like(parameter)
        with LocalStep(optimizer).on_rows():
            optimizer.step()
        assert optimizer.state[parameter]["exp_avg"].placements == tuple(placements)
        assert bool((parameter.to_local() < 1).all())


def test_state_stays_where_the_rows_are_and_is_not_copied() -> None:
    """Offloaded rows are not on the device of the mesh; meta stands for the other device."""
    mesh = init_device_mesh("cpu", (1,))
    divided = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    parameter = nn.Parameter(divided.to("meta"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = SGD([parameter], lr=0.1, momentum=0.9)
    local = LocalStep(optimizer)
    for _ in range(2):
        with local.on_rows():
            optimizer.step()
            [state] = optimizer.state.values()
            within = state["momentum_buffer"]
    kept: Any = optimizer.state[parameter]["momentum_buffer"]
    assert isinstance(kept, DTensor) and kept._local_tensor is within
    assert within.device.type == kept.device.type == "meta"
