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

    Args:
        name: of the optimizer or the schedule.
        values: by key of the training config. Values that the file leaves out are DeepSpeed's
            defaults (``origin.is_default``). "auto" is absent: the training config decides.
    """

    name: Sourced[str]
    values: Mapping[str, Sourced[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested settings of a job. None and an empty mapping stand for no request.

    Args:
        strategy, strategy_origin: the requested strategy, and the place of the request.
        world_size: processes of the whole job, on ``num_machines`` machines.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        use_cpu: compute on the CPU even if there are GPUs.
        accumulation_steps: backward passes per optimizer step.
        micro_batch_size: items per process and backward pass. ``global_batch_size``: items per
            optimizer step.
        max_grad_norm: the global gradient norm is clipped to this limit. 0 does not clip.
        optimizer, scheduler: those of a DeepSpeed JSON.
        fsdp: arguments of ``accelerate.FullyShardedDataParallelPlugin``, always of version 2.
        deepspeed: the configuration of DeepSpeed's engine, without the values that have a field
            here.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        notices: lines with ``file:line``.
        files: every file that was read.
        origins: of each value of ``fsdp``, ``deepspeed`` and ``dynamo`` that a file or a flag
            gives, by dotted key.
    """

    strategy: Strategy
    strategy_origin: Origin
    world_size: Sourced[int] | None = None
    mixed_precision: Sourced[str] | None = None
    use_cpu: bool = False
    accumulation_steps: Sourced[int] | None = None
    micro_batch_size: Sourced[int] | None = None
    global_batch_size: Sourced[int] | None = None
    max_grad_norm: Sourced[float] | None = None
    optimizer: Section | None = None
    scheduler: Section | None = None
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
