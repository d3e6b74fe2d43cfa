"""BatchNorm in full precision, in an engine that casts the model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..private.torch import BatchNormBase, own_parameters


def keep_norms_fp32(model: nn.Module) -> Callable[[], None]:
    """Remember the BatchNorm layers of a model whose parameters an engine is about to cast.

    Engines cast no buffers, and torch wants scale and shift in full precision beside statistics in
    full precision.

    Returns:
        A function that lets the layers compute in float32, after the engine has wrapped the model.
    """
    # With their classes, which sharding replaces.
    norms = [
        (module, type(module))
        for module in model.modules()
        if isinstance(module, BatchNormBase) and module.track_running_stats
    ]

    def compute_in_fp32() -> None:
        for module, kind in norms:
            module.forward = _with_full_parameters(module, kind)

    return compute_in_fp32


def _with_full_parameters(module: nn.Module, kind: type[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the forward method of a module with the parameters cast to float32."""
    # A shallow copy of the module shares the buffers. Attributes of the copy are found before the
    # parameters of the same name.
    shadow = kind.__new__(kind)
    shadow.__dict__ = dict(module.__dict__)

    def forward(value: Tensor) -> Tensor:
        shadow.training = module.training
        for key, parameter in own_parameters(module).items():
            shadow.__dict__[key] = None if parameter is None else parameter.float()
        return kind.forward(shadow, value)  # type: ignore[no-any-return]

    return forward
