"""A second device on a machine that has none: a tensor that cannot be mixed with those of the CPU.

``OtherDevice(tensor)`` says that it is on another device (``meta``, the only one whose tensors
torch makes everywhere), has values all the same, and raises what CUDA raises where it meets a
tensor of the CPU. ``.cpu()`` and ``.to("cpu")`` bring the values back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only


class OtherDevice(Tensor):
    """A tensor on the second device.

    Args:
        values: on the CPU.
    """

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OtherDevice:
        made: OtherDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device="meta"
        )
        made.values = values.detach()
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OtherDevice({self.values})"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.ops.aten._to_copy.default and "device" in kwargs:
            return _moved(args[0], torch.device(kwargs["device"]))

        for value in tree_flatten((args, kwargs))[0]:
            if isinstance(value, Tensor) and not isinstance(value, OtherDevice) and value.dim():
                raise RuntimeError("Expected all tensors to be on the same device")
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        args, kwargs = tree_map_only(OtherDevice, lambda tensor: tensor.values, (args, kwargs))
        found = function(*args, **kwargs)
        return tree_map_only(Tensor, OtherDevice, found)


def _moved(tensor: Any, device: torch.device) -> Tensor:
    values = tensor.values if isinstance(tensor, OtherDevice) else tensor
    return values.clone() if device.type == "cpu" else OtherDevice(values.clone())
