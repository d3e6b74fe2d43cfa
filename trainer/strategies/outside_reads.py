"""Parameters that code reads or changes while ZeRO-3 has taken their values away."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import DataError
from ..private.deepspeed_engine import is_taken_away
from ..private.torch import leaves_of

# Of the second a rehearsal sets values in the engine's place.
_PASSED_OVER = ("torch", "trainer")

# What a function of torch that writes to parameters, and returns none, is called.
_WRITES = ("__set__", "_foreach_")
_TENSOR: Any = Tensor
_FLAG = (_TENSOR.requires_grad.__set__, _TENSOR.requires_grad_)


class NoOutsideReads(TorchFunctionMode):
    """Refuses to read and to change parameters that are not gathered.

    Such a parameter has no element: its norm is 0, and so is every sum. The engine gathers the
    parameters of a layer for the call of the layer alone, and drops new values. A call of torch
    takes 10 us more under this mode.

    Args:
        advice: who does so, and what to do instead.
    """

    def __init__(self, advice: str) -> None:
        super().__init__()
        self._advice = advice

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch. A size, a dtype or a flag may be read, and a flag be set."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        has_values = any(hasattr(leaf, "__array__") for leaf in leaves_of(result))
        if has_values or function.__name__.startswith(_WRITES):
            is_taken = any(map(is_taken_away, leaves_of((args, kwargs))))
            if is_taken and function not in _FLAG and _caller() != "deepspeed":
                raise DataError(self._advice)
        return result


def _caller() -> str:
    """Return the package of the innermost code that is neither torch's nor of this package."""
    frames = traceback.walk_stack(inspect.currentframe())
    packages = (str(frame.f_globals.get("__name__")).split(".")[0] for frame, _ in frames)
    return next(package for package in packages if package not in _PASSED_OVER)
