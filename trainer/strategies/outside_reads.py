"""Parameters that a task computes with while ZeRO-3 has taken their values away."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import DataError
from ..private.deepspeed import is_taken_away
from ..private.torch import leaves_of

_TORCH = f"{Path(torch.__file__).parent}/"
_DEEPSPEED = f"{Path(torch.__file__).parents[1]}/deepspeed/"


class NoOutsideReads(TorchFunctionMode):
    """Refuses computations with parameters that are not gathered.

    Such a parameter has no element: its norm is 0, and so is every sum. The engine gathers the
    parameters of a layer for the call of the layer alone. A call of torch takes 10 us more under
    this mode.
    """

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch. A result that is no tensor is a size, a dtype or the like."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        is_taken = isinstance(result, Tensor) and any(map(is_taken_away, leaves_of((args, kwargs))))
        if is_taken and not _caller().startswith(_DEEPSPEED):
            raise DataError(
                "training_step computes with a parameter outside of its layer's call, where "
                "ZeRO-3 holds no values: compute in the model's forward, or set "
                "find_unused_parameters: true, which keeps the values until the backward pass"
            )
        return result


def _caller() -> str:
    """Return the file of the innermost code that is not torch's."""
    here = inspect.currentframe()
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(here))
    return next(file for file in files if not file.startswith((_TORCH, __file__)))
