"""State that an optimizer has before its first step, for tensors that take the place of its
parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .tensors import local

if TYPE_CHECKING:
    from torch.optim import Optimizer


class FirstState(dict[Tensor, dict[str, Any]]):
    """The state of an optimizer, which gives each tensor that has none what a parameter had before
    the first step.

    Adagrad makes its sums with the optimizer, for the parameters that ``build_optimizer`` saw.
    Sharding and flat groups put other tensors in their place, whose state would be missing, and of
    another shape if it were moved.

    Args:
        numbers: what fills a tensor of the parameter's shape, and its dtype (None: the
            parameter's), by key.
        values: tensors without dimensions and plain values, by key.
        beside: whether such tensors lie on the parameter's device, as fused kernels want them.
    """

    def __init__(
        self,
        numbers: dict[str, tuple[complex, torch.dtype | None]],
        values: dict[str, Any],
        *,
        beside: bool,
    ) -> None:
        super().__init__()
        self._numbers, self._values, self._beside = numbers, values, beside

    def __missing__(self, tensor: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for key, value in self._values.items():
            state[key] = value.clone() if isinstance(value, Tensor) else value
            if isinstance(value, Tensor) and self._beside:
                state[key] = state[key].to(local(tensor).device)
        for key, (number, dtype) in self._numbers.items():
            state[key] = torch.full_like(tensor, number, dtype=dtype, requires_grad=False)
        self[tensor] = state
        return state


def first_state(optimizer: Optimizer) -> FirstState | None:
    """Return the state that a fresh optimizer gives each tensor.

    None where it gives none, or what other tensors cannot be given (``replaced_problem`` says why).
    """
    try:
        return _read(optimizer)
    except ValueError:
        return None


def replaced_problem(optimizer: Optimizer) -> str:
    """Say why other tensors cannot take the place of an optimizer's parameters; empty where they
    can.
    """
    try:
        _read(optimizer)
    except ValueError as error:
        return f"before its first step the optimizer keeps {error}"
    return ""


def _read(optimizer: Optimizer) -> FirstState | None:
    found: dict[str, Any] = {}
    numbers: dict[str, tuple[complex, torch.dtype | None]] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            number = _number(parameter, key, value)
            if parameter.dim() and isinstance(value, Tensor) and value.dim():
                numbers[key] = number, None if value.dtype == parameter.dtype else value.dtype
            if found.setdefault(key, number) != number:
                raise ValueError(f"{key!r}, which is not the same for all parameters")
    if not found:
        return None
    last = next(iter(reversed(optimizer.state.values())))
    values = {key: value for key, value in last.items() if key not in numbers}
    group = optimizer.param_groups[0]
    return FirstState(numbers, values, beside=bool(group.get("fused") or group.get("capturable")))


def _number(parameter: Tensor, key: str, value: Any) -> Any:
    """Return the one number that fills a state, or a plain value."""
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise ValueError(
            f"{key!r}, whose values are not there, since the model was built on the meta device"
        )
    if value.dim() and value.shape != parameter.shape:
        raise ValueError(f"{key!r}, whose shape is not the parameter's")
    number = value.reshape(-1)[0].item() if value.numel() else 0
    if not bool((value == number).all()):
        raise ValueError(f"{key!r}, whose elements are not all the same")
    return number
