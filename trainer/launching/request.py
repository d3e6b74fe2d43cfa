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
        values: by key of the training config. Those that the file leaves out are DeepSpeed's own
            (``origin.is_default``). A value that is "auto" is absent: the training config decides.
    """

    name: Sourced[str]
    values: Mapping[str, Sourced[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a job is to run. None, and an empty mapping, mean that it was not requested.

    Args:
        strategy: the requested strategy. ``strategy_origin``: the origin of that request.
        world_size: processes of the whole job. ``num_machines`` machines share them.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        use_cpu: compute on the CPU even if there are GPUs.
        accumulation_steps: backward passes per optimizer step.
        micro_batch_size: items per process and backward pass. ``global_batch_size``: items per
            optimizer step.
        max_grad_norm: clip the global gradient norm to this. 0 means no clipping.
        optimizer, scheduler: those of a DeepSpeed JSON.
        fsdp: arguments of ``accelerate.FullyShardedDataParallelPlugin``, always of version 2.
        deepspeed: the configuration of DeepSpeed's engine, without the values that have a field
            here.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        notices: one line each with ``file:line``.
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
