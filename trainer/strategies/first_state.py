"""State that an optimizer has before its first step, given to the tensors it will really step.

``torch.optim.Adagrad`` creates its sums in its constructor, for the parameters of the model as it
was built. FSDP2 and ZeRO then hand the optimizer other tensors (shards, flat groups), which would
have no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .tensors import local

if TYPE_CHECKING:
    from torch.optim import Optimizer

# What fills a tensor of state, and its dtype; None: the dtype of the parameter.
_Fill = tuple[complex, torch.dtype | None]


class FirstState(dict[Tensor, dict[str, Any]]):
    """State of an optimizer that creates the initial state of each tensor it is asked for.

    Args:
        fills: what fills a tensor of the parameter's shape, by the state's key.
        values: tensors without dimensions (step counts) and plain values, by key.
        on_device: whether tensors without dimensions are on the parameter's device, as fused
            kernels need them.
    """

    def __init__(self, fills: dict[str, _Fill], values: dict[str, Any], *, on_device: bool) -> None:
        super().__init__()
        self._fills = fills
        self._values = values
        self._on_device = on_device

    def fresh(self) -> FirstState:
        """Return one that creates the same state, for other tensors."""
        return FirstState(self._fills, self._values, on_device=self._on_device)

    def __missing__(self, tensor: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for key, value in self._values.items():
            if not isinstance(value, Tensor):
                state[key] = value
                continue
            state[key] = value.clone()
            if self._on_device:
                state[key] = state[key].to(local(tensor).device)

        for key, (number, dtype) in self._fills.items():
            state[key] = torch.full_like(tensor, number, dtype=dtype, requires_grad=False)

        self[tensor] = state
        return state


def first_state(optimizer: Optimizer) -> FirstState | None:
    """Return the state that a fresh optimizer gives each tensor.

    None where it has none, or where it cannot be given to other tensors (``replaced_problem`` says
    why).
    """
    try:
        return _read(optimizer)
    except ValueError:
        return None


def replaced_problem(optimizer: Optimizer) -> str:
    """Return why an optimizer's parameters cannot be replaced; empty where they can."""
    try:
        _read(optimizer)
    except ValueError as error:
        return f"before its first step the optimizer keeps {error}"
    return ""


def _read(optimizer: Optimizer) -> FirstState | None:
    """Read the state of a fresh optimizer; ``ValueError`` where it depends on the parameter."""
    numbers: dict[str, Any] = {}
    fills: dict[str, _Fill] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            number = _one_number(parameter, key, value)
            if parameter.dim() and isinstance(value, Tensor) and value.dim():
                dtype = None if value.dtype == parameter.dtype else value.dtype
                fills[key] = number, dtype
            if numbers.setdefault(key, number) != number:
                raise ValueError(f"{key!r}, which is not the same for all parameters")

    if not numbers:
        return None

    last = list(optimizer.state.values())[-1]
    values = {key: value for key, value in last.items() if key not in fills}
    group = optimizer.param_groups[0]
    on_device = bool(group.get("fused") or group.get("capturable"))
    return FirstState(fills, values, on_device=on_device)


def _one_number(parameter: Tensor, key: str, value: Any) -> Any:
    """Return the number that all elements of a state have; a plain value as it is.

    Raises:
        ValueError: the state cannot be described by one number.
    """
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
