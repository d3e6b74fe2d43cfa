"""bf16 by cast weights, the arithmetic of FSDP2 and ZeRO, for replicas and a single process.

Under autocast each operation casts on its own, and other bits come out. Here the model computes
with 16-bit copies of its parameters, made once in a micro-batch: gradients of several calls and of
a shared parameter add up in 16 bits, as in the parameters of FSDP2 and ZeRO.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..private.torch import own_parameters


class CastWeights:
    """Lets a model compute with copies of its parameters in another dtype.

    Attributes:
        copies: of the micro-batch that is computed, whose calls share the copies. None if a call
            makes copies of its own, as in an evaluation.
    """

    copies: dict[nn.Parameter, Tensor] | None = None
    _called: nn.Module | None = None  # whose call has put the copies

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places: list[tuple[Any, str, nn.Parameter]] = []
        # Layers too: a backward pass calls those that are recomputed.
        for module in model.modules():
            module.register_forward_pre_hook(self._put)
            module.register_forward_hook(self._take_away, always_call=True)

    def _put(self, module: nn.Module, args: Any) -> None:
        if self._called is not None:
            return
        self._called = module
        copies: dict[nn.Parameter, Tensor] = {} if self.copies is None else self.copies
        for own in map(own_parameters, module.modules()):
            for key, parameter in own.items():
                if parameter is None or not parameter.is_floating_point():
                    continue
                if parameter not in copies:
                    with torch.enable_grad():
                        copies[parameter] = parameter.to(self._dtype)
                self._places.append((own, key, parameter))
                own[key] = copies[parameter]  # type: ignore[assignment]

    def _take_away(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self._called:
            return
        self._called = None
        for own, key, parameter in self._places:
            own[key] = parameter
        self._places = []
