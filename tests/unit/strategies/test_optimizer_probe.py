"""Trial steps on small tensors. The optimizers of torch are in ``tests/unit/optim``."""

from __future__ import annotations

from typing import Any

import torch
from other_device import OtherDevice
from plans import plan
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from trainer.strategies.optimizer_probe import (
    divided_step_problem,
    fresh_copy,
    refusal,
    small_shapes,
    state_slots,
    stepped_copy,
    steps_rows,
)

CPU = torch.device("cpu")


def halves(tensors: list[Tensor]) -> list[Tensor]:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return list(torch.split(flat, len(flat) // 2))


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4))]


class ByNorm(SGD):
    """Divides each gradient by its norm, so that a slice is stepped otherwise than the whole."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(parameter.grad.norm())
        return super().step()


class Failing(SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not today\nsecond line")


def test_a_copy_steps_other_parameters_with_the_same_settings() -> None:
    optimizer = SGD(parameters(), lr=0.5, momentum=0.9)
    other = torch.zeros(2)
    copy = fresh_copy(optimizer, [[other]])
    assert copy.param_groups[0]["params"] == [other]
    assert (copy.param_groups[0]["lr"], copy.param_groups[0]["momentum"]) == (0.5, 0.9)
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_shapes_are_small_and_one_for_each_number_of_dimensions() -> None:
    shapes = small_shapes([*parameters(), torch.ones(()), torch.ones(7, 7, 7, 7)])
    assert [shape for shape, _ in shapes] == [(5, 3), (5,), (5, 3, 2, 2)]


def test_large_parameters_are_tried_with_4096_elements() -> None:
    tried = stepped_copy(SGD([torch.ones(100, 100)], lr=0.1), CPU).param_groups[0]["params"]
    assert [tensor.shape for tensor in tried] == [(5, 3), (64, 64)]


def test_state_is_counted_in_tensors_of_the_parameters_size() -> None:
    assert state_slots(SGD(parameters(), lr=0.1), CPU) == 0
    assert state_slots(SGD(parameters(), lr=0.1, momentum=0.9), CPU) == 1
    assert state_slots(Failing(parameters(), lr=0.1), CPU) == 0


def test_an_update_by_element_can_be_divided() -> None:
    optimizer = SGD(parameters(), lr=1e-9, momentum=0.9)
    assert divided_step_problem(optimizer, CPU, halves) == ""
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 1e-9


def test_parts_may_be_on_another_device_than_the_whole() -> None:
    """What ``distribute_tensor`` divides goes to the device of the mesh."""

    def divide(tensors: list[Tensor]) -> list[Tensor]:
        return [OtherDevice(part.clone()) for part in halves(tensors)]

    optimizer = AdamW(parameters(), lr=1e-3, foreach=False)
    assert divided_step_problem(optimizer, CPU, divide) == ""
    problem = divided_step_problem(ByNorm(parameters(), lr=0.1, foreach=False), CPU, divide)
    assert "not that on the whole" in problem


def test_an_update_by_the_norm_of_a_parameter_cannot_be_divided() -> None:
    problem = divided_step_problem(ByNorm(parameters(), lr=0.1), CPU, halves)
    assert problem.startswith("a step on them is not that on the whole: in a trial it is off by")


def test_a_failing_step_is_told_in_one_line() -> None:
    problem = divided_step_problem(Failing(parameters(), lr=0.1), CPU, halves)
    assert problem == "a trial step fails (ValueError: not today)"


def test_a_difference_that_is_no_number_is_refused() -> None:
    class Lost(SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.fill_(float("nan"))

    assert "off by nan" in divided_step_problem(Lost(parameters(), lr=0.1), CPU, halves)


def test_the_refusal_names_who_chose_the_optimizer() -> None:
    made = plan(optimizer="torch.optim.SGD")
    optimizer = SGD(parameters(), lr=0.1)
    by_config = str(refusal("it fails", optimizer, made, None))
    assert by_config.startswith("train.yaml:7: optimizer: 'torch.optim.SGD': it fails; run it on")
    by_task = str(refusal("it fails", optimizer, made, "Mine.build_optimizer"))
    assert by_task.startswith("Mine.build_optimizer") and "'SGD'" in by_task


class WithSize(SGD):
    """Keeps one number a row of what it steps."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(len(parameter))
        return super().step()


def test_an_optimizer_by_element_may_step_rows_as_ordinary_tensors() -> None:
    for made in (SGD(parameters(), lr=0.1, momentum=0.9), AdamW(parameters(), lr=0.1)):
        assert steps_rows(made, CPU, halves)
    assert not steps_rows(ByNorm(parameters(), lr=0.1), CPU, halves)
    assert not steps_rows(Failing(parameters(), lr=0.1), CPU, halves)
    assert not steps_rows(WithSize(parameters(), lr=0.1), CPU, halves), "state of another shape"
