"""What FSDP2 gathers a layer to: listed by name, and given the hooks of the first parameters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer.strategies.gathered import carry_hooks


@pytest.fixture
def sharded() -> Iterator[nn.Sequential]:
    """A layer that is a unit of its own, and a last one that belongs to the root."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False))
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    yield model
    dist.destroy_process_group()


def test_hooks_are_called_with_gradients_of_whole_parameters(sharded: nn.Sequential) -> None:
    shapes: list[tuple[int, ...]] = []

    def hook(gradient: Tensor) -> None:
        shapes.append(tuple(gradient.shape))

    carry_hooks(sharded, {"0.weight": {0: hook}, "1.weight": {0: hook}})
    for _ in range(2):
        sharded(torch.ones(1, 2)).sum().backward()
    assert shapes == [(1, 3), (3, 2)] * 2
