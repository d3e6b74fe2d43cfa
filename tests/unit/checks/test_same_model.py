"""What ranks compare of models and optimizers before anything is divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_run import TwoRanks
from torch import nn

from trainer.checks.same_model import check_model
from trainer.errors import LaunchError


def test_values_that_are_not_there_are_not_compared() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    model.register_buffer("edges", torch.eye(2).to_sparse())
    ranks: Any = TwoRanks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check_model(model, optimizer, ranks, values_come_later=False)
    assert ranks.sent


def test_values_that_are_read_later_do_not_count() -> None:
    """A resumed run, or one with ``weights``, has them from files; what no file holds counts all
    the same.
    """
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.randn(2), persistent=True)
    model.register_buffer("drawn", torch.randn(2), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def other_rank(value: Any) -> Any:
        if isinstance(value, tuple):
            return None, 0
        return {
            n: text + "!" if n.startswith("the checksum") else text for n, text in value.items()
        }

    ranks: Any = TwoRanks(other_rank)
    with pytest.raises(LaunchError, match=r"^rank 1: the checksum of weight is .* same on every"):
        check_model(model, optimizer, ranks, values_come_later=False)
    with pytest.raises(LaunchError, match=r"^rank 1: the checksum of drawn is "):
        check_model(model, optimizer, ranks, values_come_later=True)
