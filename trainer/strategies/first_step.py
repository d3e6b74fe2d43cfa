"""The state of an optimizer, found out by the first step of a copy on small tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.digest import traces
from ..errors import CheckpointError
from ..private.torch import STEP_HOOKS, leaves_of
from ..text import listed

if TYPE_CHECKING:
    from torch.optim import Optimizer

# How deep counters are looked for in objects within objects.
DEPTH = 3
# Attributes that ``fresh_copy`` replaces.
_PASSED = ("state", "param_groups", *STEP_HOOKS)


def fresh_copy(optimizer: Optimizer, parameters: Sequence[Sequence[Tensor]]) -> Any:
    """Return a copy of a fresh optimizer, for parameters by group, with neither state nor hooks.

    A hook may change the model that it has been made with. A step may count in objects within, so
    these are copied if they can be.
    """
    copy: Any = object.__new__(type(optimizer))
    own = vars(optimizer)
    kept = {id(leaf): leaf for leaf in leaves_of(own) if isinstance(leaf, Tensor | nn.Module)}
    with suppress(Exception):  # (an object within may be anything)
        own = deepcopy(own, {id(optimizer): copy, **kept})
    vars(copy).update(own, state=defaultdict(dict), **{hooks: {} for hooks in STEP_HOOKS})
    pairs = zip(optimizer.param_groups, parameters, strict=True)
    copy.param_groups = [{**group, "params": list(own)} for group, own in pairs]
    return copy


def small(optimizer: Optimizer, device: torch.device) -> list[list[Tensor]]:
    """Return two tensors of zeros for each number of dimensions and dtype in each group.

    The second has more than 4,096 elements, and rows and columns above 128: from there on some
    optimizers keep moments in 8 bits, or factored. A scalar is tried as a vector. Otherwise Adam's
    step, a scalar for each parameter, would look like state of the parameter's shape.
    """
    return [
        [
            torch.zeros((*shape, *[2] * dimensions)[:dimensions], dtype=dtype, device=device)
            for dimensions, dtype in dict.fromkeys(
                (max(1, p.dim()), p.dtype) for p in group["params"]
            )
            for shape in ((5, 3), (131 if dimensions > 1 else 8200, 129))
        ]
        for group in optimizer.param_groups
    ]


def refuse_counters(thing: Any, before: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` if a trial has changed an attribute, which no checkpoint holds.

    A flag that is set tells that something is prepared, which a resumed run prepares again.
    ``before`` has the ``traces`` of the optimizer or schedule before the trial.
    """
    names = [
        name
        for name, trace in traces(thing, DEPTH).items()
        if trace not in (before.get(name), "True") and name not in _PASSED
    ]
    if names:
        raise CheckpointError(
            f"{type(thing).__qualname__} changes its {listed(names)} in each step, and a resumed "
            "run would begin anew: keep numbers in the optimizer's parameter groups, compute rates "
            "from the step, or set keep_last: 0 to train without checkpoints"
        )


def stepped_copy(optimizer: Optimizer, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """Return a copy after a step of zeros, and its ``traces`` before. Raises errors of the step."""
    copy = fresh_copy(optimizer, small(optimizer, device))
    for group in copy.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    before = traces(copy, DEPTH)
    copy.step()
    return copy, before
