"""Whether an optimizer may step parts of parameters: found out by steps on small tensors, not by a
list of names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError, Origin, Problem
from .first_state import first_state
from .tensors import full

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..plan import Plan
    from .base import Strategy

Divide = Callable[
    [list[Tensor]], list[Tensor]
]  # what an optimizer is given of a group's tensors on this rank
_BOUND = 1e-5  # of the largest change; updates by element differ by some 1e-7 of it
_ROUNDING = 4  # units in the last place of the largest weight, which a small change is lost among
# Sizes of the trial's gradients, from small to large, so that each is the largest that the
# optimizer has seen: some act above a norm only. Two steps of each make 16, for those that act
# after a warm-up.
_SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
_STEPS_OF_EACH = 2


def fresh_copy(optimizer: Optimizer, parameters: Sequence[Sequence[Tensor]]) -> Any:
    """Return an optimizer with the same settings and no state, over other parameters for each
    group.
    """
    copy: Any = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    first = first_state(optimizer)
    copy.state = defaultdict(dict) if first is None else first
    copy.param_groups = [
        {**group, "params": list(own)}
        for group, own in zip(optimizer.param_groups, parameters, strict=True)
    ]
    return copy


def small_shapes(parameters: Iterable[Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return a small shape for each number of dimensions and dtype: some optimizers take matrices
    only.

    A scalar's state could not be told from one value for a whole parameter, so a vector stands for
    it.
    """
    likes = dict.fromkeys((max(1, p.dim()), p.dtype) for p in parameters)
    return [((5, 3, *[2] * dimensions)[:dimensions], dtype) for dimensions, dtype in likes]


def stepped_copy(optimizer: Optimizer, device: torch.device) -> Any:
    """Return a copy of an optimizer after one step on small parameters like its own; raises what
    the step raises.

    Beside large ones stands one of 4,096 elements: from there on some optimizers keep a state of 8
    bits.
    """

    def small(parameters: list[Tensor]) -> Iterator[Tensor]:
        large = {(max(1, p.dim()), p.dtype) for p in parameters if p.numel() >= 4096}
        larger = [
            ((4096,) if rank == 1 else (64, 64, *[1] * (rank - 2)), dtype) for rank, dtype in large
        ]
        for shape, dtype in (*small_shapes(parameters), *larger):
            tensor = torch.zeros(shape, dtype=dtype, device=device)
            tensor.grad = torch.zeros_like(tensor)
            yield tensor

    copy = fresh_copy(optimizer, [list(small(group["params"])) for group in optimizer.param_groups])
    copy.step()
    return copy


def state_slots(optimizer: Optimizer, device: torch.device) -> float:
    """Count the tensors that a fresh optimizer keeps beside each parameter: of Adam 2, of momentum
    1.

    A mean over the parameters, by their sizes, in parts of their bytes; 0 where a step on small
    ones fails.
    """
    try:
        tried = stepped_copy(optimizer, device)
    except Exception:  # (an optimizer's step may want anything)
        return 0.0
    kept = whole = 0.0
    for group, small in zip(optimizer.param_groups, tried.param_groups, strict=True):
        slots = {
            (tensor.dim(), tensor.dtype): sum(
                value.nbytes / tensor.nbytes
                for value in tried.state[tensor].values()
                if isinstance(value, Tensor) and value.dim()
            )
            for tensor in small["params"]
        }
        for parameter in group["params"]:
            whole += parameter.numel()
            kept += parameter.numel() * slots[max(1, parameter.dim()), parameter.dtype]
    return kept / whole


def divided_step_problem(optimizer: Optimizer, device: torch.device, divide: Divide) -> str:
    """Return why steps on parts are not the parts of a step; empty where they are. Collective if
    ``divide`` is.

    Args:
        optimizer: fresh; a copy of it is tried.
        device: where it will step.
        divide: of a group's tensors, or of their gradients.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [small_shapes(group["params"]) for group in optimizer.param_groups]

    def drawn() -> list[list[Tensor]]:
        return [
            [
                torch.randn(shape, dtype=dtype, generator=generator).to(device)
                for shape, dtype in group
            ]
            for group in shapes
        ]

    whole = drawn()
    parts = [divide([tensor.clone() for tensor in group]) for group in whole]
    optimizers = [fresh_copy(optimizer, whole), fresh_copy(optimizer, parts)]
    for one in optimizers:
        for (
            group
        ) in one.param_groups:  # a rate at which a step is not lost in the rounding of the weights
            group["lr"] = (
                torch.full_like(group["lr"], 0.1) if isinstance(group["lr"], Tensor) else 0.1
            )
    before = [(_flat(group), _flat(group)) for group in whole]
    for scale in _scales(shapes):
        for _ in range(_STEPS_OF_EACH):
            for own, divided, gradients in zip(whole, parts, drawn(), strict=True):
                for gradient in gradients:
                    gradient.mul_(scale)
                for tensor, gradient in zip(
                    [*own, *divided], [*gradients, *divide(gradients)], strict=True
                ):
                    tensor.grad = gradient
            for one, what in zip(optimizers, ("a trial step", "a step on them"), strict=True):
                try:
                    one.step()
                except Exception as error:  # (an optimizer's step may want anything)
                    return f"{what} fails ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"
        after = [
            (_flat(group), _flat(divided)) for group, divided in zip(whole, parts, strict=True)
        ]
        for group, (old, old_of_parts), (new, new_of_parts) in zip(
            whole, before, after, strict=True
        ):
            expected, found = new - old, new_of_parts - old_of_parts
            largest, difference = float(expected.abs().max()), float((found - expected).abs().max())
            precision = max(torch.finfo(tensor.dtype).eps for tensor in group)
            rounding = _ROUNDING * precision * float(new.abs().max())
            if (
                not difference <= _BOUND * largest + rounding
            ):  # so said of a difference that is no number as well
                off = f"off by {difference:.2g} of {largest:.2g}"
                return f"a step on them is not that on the whole: in a trial it is {off}"
        before = after
    return ""


def _scales(shapes: Iterable[Sequence[tuple[tuple[int, ...], torch.dtype]]]) -> list[float]:
    """Return the sizes of gradients whose squares all dtypes can hold."""
    largest = min(torch.finfo(dtype).max for group in shapes for _, dtype in group)
    return [scale for scale in _SCALES if (10 * scale) ** 2 < largest]


def check_divisible(optimizer: Optimizer, strategy: Strategy, built_by: str | None) -> None:
    """Raise ``ConfigError`` where a fresh optimizer cannot step what the strategy gives it.
    Collective.

    Args:
        built_by: the method that built it; None where the config names it.
    """
    if problem := strategy.optimizer_problem(optimizer):
        raise ConfigError(refusal(problem, optimizer, strategy.plan, built_by))


def refusal(problem: str, optimizer: Optimizer, plan: Plan, built_by: str | None) -> Problem:
    """Return what is wrong with an optimizer that cannot step what a strategy gives it.

    Args:
        problem: what ``optimizer_problem`` said.
        built_by: the method that built it; None where the config names it.
    """
    configured = plan.origins.get("optimizer", Origin("TrainConfig")).named("optimizer")
    origin = configured if built_by is None else Origin(built_by)
    kind = plan.optimizer if built_by is None else type(optimizer).__qualname__
    rule = f"{problem}; run it on replicas (DDP) or in one process, or take another optimizer"
    return Problem(origin=origin, value=kind, rule=rule)


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([full(tensor).detach().reshape(-1) for tensor in tensors])
