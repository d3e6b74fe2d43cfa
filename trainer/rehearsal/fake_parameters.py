"""Modules and parameters that work without values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .cuda import replace_in

_DATA: Any = torch.Tensor.data


def _set_data(tensor: Tensor, values: Tensor) -> None:
    """Set ``tensor.data``, also if the device changes, and if only the new values are fake."""
    if isinstance(values, FakeTensor) and not isinstance(tensor, FakeTensor):
        # As torch.utils.swap_tensors, which refuses a tensor that a fake mode remembers.
        fresh: Any = values.detach().requires_grad_(tensor.requires_grad)
        fresh._is_param = isinstance(tensor, nn.Parameter)
        tensor.__class__ = FakeTensor
        vars(tensor).update(vars(fresh))
        torch._C._swap_tensor_impl(tensor, fresh)
        return
    _DATA.__set__(tensor, values)
    if isinstance(tensor, FakeTensor):
        tensor.fake_device = values.device


def _address(tensor: FakeTensor) -> int:
    """Return a number of the storage, so that comparisons of addresses are right."""
    storage: int = tensor.untyped_storage()._cdata
    return (storage << 40) + int(tensor.storage_offset()) * tensor.itemsize


_NEW: Any = FakeTensor.__new__


def _new(cls: type, first: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a fake tensor, or a parameter as ``type(parameter)(values, requires_grad=...)`` does."""
    if isinstance(first, Tensor):
        return nn.Parameter(first, kwargs["requires_grad"])
    return _NEW(cls, first, *args, **kwargs)


def _draw_none(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Set zeros. torch draws until no value is out of bounds, and a fake tensor's is always 1."""
    return nn.init.zeros_(tensor)


def install_parameters() -> None:
    """Replace the methods of tensors and modules that need values. For the rest of the process."""
    replace_in(Tensor, data=property(_DATA.__get__, _set_data))
    replace_in(FakeTensor, __new__=_new, data_ptr=_address)
    replace_in(FakeTensorMode, __deepcopy__=lambda mode, memo: mode)  # which each tensor has
    # Modules move and cast parameters by a swap. torch's own refuses a tensor that a fake mode
    # remembers, and without a swap tied parameters would part.
    torch.__future__.set_swap_module_params_on_conversion(True)
    replace_in(torch.utils, swap_tensors=_set_data)
    replace_in(nn.init, _no_grad_trunc_normal_=_draw_none)
