"""What the launch files and flags ask for, resolved as far as they alone can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ..errors import Problem

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
class Given:
    """A typed value: ``where`` is ``file:line`` or ``command line``, ``key`` the dotted key or the flag."""

    value: Any
    where: str
    key: str

    @property
    def home(self) -> str:
        return f"{self.where} ({self.key})"

    def problem(self, rule: str) -> Problem:
        return Problem(where=self.where, key=self.key, value=self.value, rule=rule)

    def asked(self, value: T) -> Asked[T]:
        return Asked(value=value, where=self.home)


@dataclass(frozen=True, kw_only=True)
class Section:
    """An optimizer or a schedule that a launch file asks for, in the words of the training config.

    Args:
        name: of the optimizer or the schedule; ``typed`` is the type that the file gives, ``place`` the whole section.
        values: what the file says, by key of the training config.
        defaults: what the engine takes where the file is silent, likewise. What is in neither ("auto") is the training
            config's to say.
    """

    name: str
    typed: Given
    place: Given
    values: Mapping[str, Given] = field(default_factory=dict)
    defaults: Mapping[str, Given] = field(default_factory=dict)


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
        optimizer, scheduler: those of a DeepSpeed JSON.
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
    optimizer: Section | None = None
    scheduler: Section | None = None
    fsdp: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    dynamo: dict[str, Any] = field(default_factory=dict)
    num_machines: int = 1
    notices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
