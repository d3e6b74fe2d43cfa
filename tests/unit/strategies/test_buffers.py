"""Buffers that a step changed are put back where the step is left out, whatever became of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.strategies.base import StepResult
from trainer.strategies.buffers import BuffersBefore, restored_buffers


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
        self.register_buffer("expanded", torch.ones(1).expand(4))
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


def outcome(norm: float, *, skipped: bool = False) -> StepResult:
    return StepResult(grad_norm=torch.tensor(norm), skipped=skipped)


def test_a_step_that_is_left_out_changes_no_buffer() -> None:
    model = Kinds()
    buffers = BuffersBefore(model)
    for left_out in (outcome(float("nan")), outcome(float("inf")), outcome(1.0, skipped=True)):
        buffers.take()
        before = values(model)
        model.change(float("nan"))
        buffers.put_back(left_out.left_out)
        assert values(model) == before
        assert model.same is model.mean, "what is shared stays so"


def test_a_step_that_was_made_keeps_its_buffers() -> None:
    model = Kinds()
    buffers = BuffersBefore(model)
    buffers.take()
    model.change(2.0)
    after = values(model)
    buffers.put_back(outcome(1.0).left_out)
    assert values(model) == after


def test_a_batch_that_does_not_count_leaves_constants_alone() -> None:
    model = Kinds()
    before = values(model)
    with restored_buffers(model):
        model.mean.add_(1.0)
        model.count += 1
    assert values(model) == before


def test_where_the_outcome_lies_on_a_device_each_buffer_is_chosen_there() -> None:
    """As on a GPU: no branch of the host; seen here by an outcome whose device is not called cpu."""

    class Elsewhere(StepResult):
        @property
        def left_out(self) -> Tensor:
            return OnDevice(super().left_out)

    model = Kinds()
    buffers = BuffersBefore(model)
    for norm in (1.0, float("nan")):
        buffers.take()
        before = values(model)
        model.mean.add_(3.0)
        changed = values(model)
        buffers.put_back(Elsewhere(grad_norm=torch.tensor(norm)).left_out)
        assert values(model) == (changed if norm == 1.0 else before)


class OnDevice:
    """A truth value that cannot be looked at without waiting."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.device = torch.device("meta")

    def to(self, device: torch.device) -> Tensor:
        return self.value

    def __bool__(self) -> bool:
        raise AssertionError("the host waits")
