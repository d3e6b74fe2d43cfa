"""The run that launch files and flags ask for, before the training config is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import Origin, Sourced

Strategy = Literal["single", "ddp", "fsdp", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested settings of a job. None and an empty mapping stand for no request.

    Args:
        settings: by keys of the training config. Settings that the sections of a DeepSpeed JSON
            leave out are DeepSpeed's defaults (``origin.is_default``). "auto" is absent.
        fsdp: settings of FSDP2, as ``accelerate.FullyShardedDataParallelPlugin`` names them.
        deepspeed: the engine's configuration, without ``settings``. ``mixed_precision`` replaces
            the switches of fp16 and bf16.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        files: every file that was read, of which ``notices`` are lines with ``file:line``.
        origins: of the given values of ``fsdp`` and ``deepspeed``, by dotted key.
    """

    strategy: Strategy
    strategy_origin: Origin
    world_size: Sourced[int] | None = None
    settings: dict[str, Sourced[Any]] = field(default_factory=dict)
    use_cpu: bool = False
    fsdp: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    dynamo: dict[str, Any] = field(default_factory=dict)
    num_machines: int = 1
    notices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)


def visible_gpus() -> int:
    """Return how many GPUs this process sees."""
    import torch

    return torch.cuda.device_count()
