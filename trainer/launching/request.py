"""What the launch files and flags ask for, resolved as far as they alone can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Strategy = Literal["single", "ddp", "fsdp", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, kw_only=True)
class Asked(Generic[T]):
    """A value and its home, so that a disagreement can name both.

    Args:
        value: what was asked for.
        where: ``file:line (key)`` or ``command line (--flag)``.
    """

    value: T
    where: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a job is to run. None, and an empty mapping, mean that nobody asked.

    Args:
        strategy: what is to be built; ``strategy_where`` is the home of that wish.
        world_size: processes of the whole job; ``num_machines`` machines share them.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        use_cpu: compute on the CPU even where there are GPUs.
        accumulation_steps: backward passes per optimizer step.
        micro_batch_size: items per process and backward pass; ``global_batch_size``: per optimizer step.
        max_grad_norm: clip the global gradient norm to this; 0 means no clipping.
        optimizer: ``{"type": ..., "params": {...}}`` of a DeepSpeed JSON without its "auto" values;
            ``scheduler`` likewise.
        fsdp: arguments of ``accelerate.FullyShardedDataParallelPlugin``, always of version 2.
        deepspeed: the DeepSpeed configuration without what has a field of its own here.
        dynamo: arguments of ``accelerate.utils.TorchDynamoPlugin``.
        notices: what was mapped or has no effect here, one line each with ``file:line``.
        files: every file that was read.
        where: home of each value of ``fsdp`` and ``deepspeed`` that was typed, by dotted key.
    """

    strategy: Strategy
    strategy_where: str
    world_size: Asked[int] | None = None
    mixed_precision: Asked[str] | None = None
    use_cpu: bool = False
    accumulation_steps: Asked[int] | None = None
    micro_batch_size: Asked[int] | None = None
    global_batch_size: Asked[int] | None = None
    max_grad_norm: Asked[float] | None = None
    optimizer: Asked[dict[str, Any]] | None = None
    scheduler: Asked[dict[str, Any]] | None = None
    fsdp: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    dynamo: dict[str, Any] = field(default_factory=dict)
    num_machines: int = 1
    notices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
