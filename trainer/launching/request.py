"""The run that launch files and flags ask for, before the training config is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import Origin, Sourced

Strategy = Literal["single", "ddp", "fsdp", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """An optimizer or a schedule that a DeepSpeed JSON asks for, by keys of the training config.

    Values that the file leaves out are DeepSpeed's defaults (``origin.is_default``). "auto" is
    absent: the training config decides. A job without a section has one without a name.
    """

    name: Sourced[str] | None = None
    values: Mapping[str, Sourced[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested settings of a job. None and an empty mapping stand for no request.

    Args:
        micro_batch_size: items per process and backward pass. ``global_batch_size``: per step.
        max_grad_norm: 0 does not clip.
        fsdp: arguments of ``accelerate.FullyShardedDataParallelPlugin``, always of version 2.
        deepspeed: the engine's configuration, without the values that have a field here.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        files: every file that was read, of which ``notices`` are lines with ``file:line``.
        origins: of the given values of ``fsdp``, ``deepspeed`` and ``dynamo``, by dotted key.
    """

    strategy: Strategy
    strategy_origin: Origin
    world_size: Sourced[int] | None = None
    context_parallel: Sourced[int] | None = None
    mixed_precision: Sourced[str] | None = None
    use_cpu: bool = False
    accumulation_steps: Sourced[int] | None = None
    micro_batch_size: Sourced[int] | None = None
    global_batch_size: Sourced[int] | None = None
    max_grad_norm: Sourced[float] | None = None
    optimizer: Section = Section()
    scheduler: Section = Section()
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
