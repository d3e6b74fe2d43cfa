"""The step of Adam, AdamW and SGD on this rank's rows of parameters as ordinary tensors.

FSDP2's parameters are DTensors, and so are their gradients and the optimizer's state. Each
operation on a DTensor first finds out how its result is divided: for a model of 288 parameters a
step of fused AdamW takes 19.6 ms of Python, and 2.5 ms on the tensors within. These optimizers
compute element by element, so both give the same bits.

Only the step itself sees ordinary tensors. Before and after it the optimizer has the model's
parameters in its groups, and DTensors in its state under these parameters: views of the same
memory. So checkpoints, ``run.optimizer.step()`` in a loop of your own, and callbacks see no
difference. Hooks of the optimizer that run within the step (``register_step_pre_hook``) see rows.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW

from ..private.torch import local_of, set_local

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Their state is changed in place, and consists of tensors of the parameter's shape and of scalars.
_WITH_KNOWN_STATE = (Adam, AdamW, SGD)


def steps_rows(optimizer: Optimizer) -> bool:
    """Return whether an optimizer may step rows as ordinary tensors."""
    return type(optimizer) in _WITH_KNOWN_STATE


class LocalStep:
    """Lets an optimizer step this rank's rows as ordinary tensors.

    Args:
        optimizer: has a sharded model's parameters, and ``steps_rows``.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        # By the id of a DTensor: a parameter that shares the memory of its rows, and these rows.
        self._rows: dict[int, tuple[nn.Parameter, Tensor]] = {}

    @contextlib.contextmanager
    def on_rows(self) -> Iterator[None]:
        """Give the optimizer ordinary tensors for the length of a block."""
        optimizer = self._optimizer
        groups = optimizer.param_groups
        whole_state: Any = optimizer.state
        parameters: list[list[Tensor]] = [group["params"] for group in groups]
        rows = [[self._row(parameter) for parameter in of_group] for of_group in parameters]

        state: Any = defaultdict(dict)
        pairs: list[tuple[Tensor, Tensor]] = []
        for group, of_group, own in zip(groups, parameters, rows, strict=True):
            group["params"] = own
            pairs += zip(of_group, own, strict=True)
        for parameter, row in pairs:
            if parameter in whole_state:
                state[row] = _local(whole_state[parameter])

        optimizer.state = state
        try:
            yield
        finally:
            optimizer.state = whole_state
            for group, of_group in zip(groups, parameters, strict=True):
                group["params"] = of_group
            for parameter, row in pairs:
                if row is not parameter:
                    row.grad = None
                if len(state[row]) > len(whole_state.get(parameter, ())):
                    whole_state[parameter] = _divided(state[row], parameter)

    def _row(self, parameter: Tensor) -> Tensor:
        """Return a parameter's rows with their gradient, as an ordinary parameter."""
        if not isinstance(parameter, DTensor):
            return parameter
        tensor = local_of(parameter)
        row, known = self._rows.get(id(parameter), (None, None))
        if row is None or known is not tensor:  # FSDP2 moves rows before the first forward pass
            row = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
            self._rows[id(parameter)] = row, tensor
        if parameter.grad is not None:
            row.grad = local_of(parameter.grad)
        return row


def _local(state: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's state with its tensors' rows."""
    return {
        key: local_of(value) if isinstance(value, DTensor) else value
        for key, value in state.items()
    }


def _divided(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the state of rows as the parameter's own optimizer would keep it."""
    if not isinstance(parameter, DTensor):
        return state
    found = dict(state)
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim():
            found[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
            set_local(found[key], value)
    return found
