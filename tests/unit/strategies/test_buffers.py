"""Buffers that a step changed are put back where the step is left out, whatever became of them."""

from __future__ import annotations

import torch
from torch import nn

from trainer.strategies.buffers import buffers_before, put_back, restored_buffers


class Kinds(nn.Module):
    """Buffers that are written to, replaced, grown, absent at first, shared, or constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2, 3).t())
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("late", None)
        self.register_buffer("same", self.mean)
        self.register_buffer("sparse", torch.eye(2).to_sparse())

    def change(self, value: float) -> None:
        self.mean.add_(value)
        self.count += 1
        self.hidden.mul_(value)
        self.replaced = self.replaced + value
        self.grown = torch.cat([self.grown, self.grown + value])
        self.late = torch.full((2,), value)


def values(model: nn.Module) -> dict[str, list[float] | None]:
    return {
        key: None if buffer is None else buffer.to_dense().double().flatten().tolist()
        for key, buffer in model._buffers.items()
    }


def test_buffers_get_their_values_back() -> None:
    model = Kinds()
    for value in (float("nan"), 2.0):
        copies = buffers_before(model.modules())
        before = values(model)
        model.change(value)
        put_back(copies)
        assert values(model) == before
        assert model.same is model.mean, "what is shared stays so"


def test_a_batch_that_does_not_count_leaves_constants_alone() -> None:
    model = Kinds()
    before = values(model)
    with restored_buffers(model):
        model.mean.add_(1.0)
        model.count += 1
    assert values(model) == before
