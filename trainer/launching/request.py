"""What launch files and flags ask for, before it is compared with the training config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import Origin, Sourced

Strategy = Literal["single", "ddp", "fsdp", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """An optimizer or a schedule that a launch file asks for, by keys of the training config.

    Args:
        name: of the optimizer or the schedule.
        typed: the type as the file gives it.
        origin: of the section.
        values: those in the file, by key of the training config.
        defaults: those that DeepSpeed takes where the file gives none, likewise. What is in neither
            ("auto") is decided by the training config.
    """

    name: str
    typed: Sourced[str]
    origin: Origin
    values: Mapping[str, Sourced[Any]] = field(default_factory=dict)
    defaults: Mapping[str, Sourced[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a job is to run. None, and an empty mapping, mean that it was not requested.

    Args:
        strategy: the requested one.
        strategy_origin: of the request for it.
        stage_0: the request is ZeRO's stage 0, which shards nothing: it runs as ``ddp``, or as
            ``single`` on one process.
        world_size: processes of the whole job; ``num_machines`` machines share them.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        use_cpu: compute on the CPU even where there are GPUs.
        accumulation_steps: backward passes per optimizer step.
        micro_batch_size: items per process and backward pass; ``global_batch_size``: per optimizer
            step.
        max_grad_norm: clip the global gradient norm to this; 0 means no clipping.
        optimizer, scheduler: those of a DeepSpeed JSON.
        fsdp: arguments of ``accelerate.FullyShardedDataParallelPlugin``, always of version 2.
        deepspeed: the configuration of DeepSpeed's engine, without what has a field here.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        notices: what was mapped or has no effect here, one line each with ``file:line``.
        files: every file that was read.
        origins: of each value of ``fsdp``, ``deepspeed`` and ``dynamo`` that a file or a flag
            gives, by dotted key.
    """

    strategy: Strategy
    strategy_origin: Origin
    stage_0: bool = False
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
