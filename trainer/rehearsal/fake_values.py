"""The values that a device without values has: whole numbers from the host, and 1 for the rest."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_any_only, tree_map_only

_KEPT = 1 << 23  # bytes of a tensor of whole numbers whose values are known
# Functions of DeepSpeed, and of torch's scaler of fp16, for which 0 means that all is well.
_OVERFLOW = {"has_overflow", "_maybe_opt_step"}


def has_values(tensor: Tensor) -> bool:
    """Return whether the values of a tensor are kept: whole numbers, and not too many."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.nbytes <= _KEPT


def values_of(leaf: Any) -> Tensor | None:
    """Return the known values of a tensor, on the host. None for all else."""
    if isinstance(leaf, FakeTensor):
        return getattr(leaf, "known_values", None)
    return leaf if isinstance(leaf, Tensor) and has_values(leaf) else None


def computed(function: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Run an operation on whole numbers that are all known. Return None if some are not."""
    is_unknown = tree_any_only(Tensor, lambda leaf: values_of(leaf) is None, (args, kwargs))
    if is_unknown or "empty" in str(function):
        return None
    with contextlib.suppress(RuntimeError, TypeError):
        here, named = tree_map_only(Tensor, values_of, (list(args), kwargs))
        if "device" in named:
            named["device"] = torch.device("cpu")
        return function(*here, **named)
    return None


def element(tensor: Any) -> Any:
    """Return the value that stands for each element of a tensor whose values are not known."""
    if tensor.dtype == torch.bool:
        return getattr(tensor, "truth", True)
    frames = traceback.walk_stack(sys._getframe())
    value = int(_OVERFLOW.isdisjoint(frame.f_code.co_name for frame, _ in frames))
    return float(value) if tensor.is_floating_point() else value


def judge(function: Any, args: Sequence[Any], result: Any) -> None:
    """Set the value of a bool result from the ``element`` of each input: so 1 is finite."""
    is_bool = isinstance(result, FakeTensor) and result.dtype == torch.bool
    if not is_bool or values_of(result) is not None:
        return

    def stand_in(leaf: FakeTensor) -> Tensor:
        return torch.full((1,) * leaf.dim(), element(leaf))

    # The operation may refuse tensors of one element. Then each element of the result is true.
    with contextlib.suppress(Exception):
        result.truth = bool(function(*tree_map_only(FakeTensor, stand_in, list(args))).all())
