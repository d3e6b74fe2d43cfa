"""A task's whole model in one process: by the seed, also from the meta device."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from trainer import LaunchError, Task
from trainer.commands.whole_model import build_whole


class Unfilled(nn.Module):
    """A module with a parameter that nothing initializes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2))


@dataclass(frozen=True, kw_only=True)
class Small(Task):
    device: str = "cpu"
    is_filled: bool = True

    def build_model(self) -> nn.Module:
        with torch.device(self.device):
            return nn.Linear(4, 2) if self.is_filled else Unfilled()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_build_whole_initializes_by_the_seed_on_the_cpu(device: str) -> None:
    task = Small(device=device)
    first, again, other = (build_whole(task, seed).weight for seed in (1, 1, 2))
    assert isinstance(first, nn.Parameter) and first.device.type == "cpu"
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_build_whole_refuses_a_parameter_that_nothing_initializes() -> None:
    with pytest.raises(LaunchError, match="weight"):
        build_whole(Small(device="meta", is_filled=False))
