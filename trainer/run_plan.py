"""The settings of a run, with every value resolved (by ``launching/resolve.py``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Origin, origin_of


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The resolved settings of a run, written to ``plan.json`` and shown as the banner.

    Args:
        strategy: ``single``, ``ddp``, ``fsdp``, ``zero1``, ``zero2`` or ``zero3``.
        launcher: ``python``, ``accelerate``, ``torchrun``, ``deepspeed``, ``srun``, ``mpirun`` or
            ``environment``.
        world_size: processes in all.
        context_parallel: processes of a group that share rows. 1: each process has its own rows.
        device: ``cuda`` or ``cpu``.
        rehearsal: whether a strategy for several processes runs on CPUs, over gloo.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        micro_batch_size: examples per process and backward.
        accumulation_steps: backwards per optimizer step.
        global_batch_size: examples per optimizer step, the product of ``micro_batch_size``,
            ``accumulation_steps`` and ``world_size``, divided by ``context_parallel``.
        max_grad_norm: the global norm of the gradients is clipped to this. None does not clip.
        optimizer, optimizer_settings: ``adamw``, ``adam``, ``sgd`` or a class, with all of its
            settings but the rate.
        lr: the learning rate that is used, scaled from ``lr_reference`` by ``lr_scaling``.
        lr_reference, lr_scaling, reference_batch_size: the configured rate, the rule, and the batch
            that the rate belongs to.
        schedule, schedule_settings, final_lr_ratio: as in the training config.
        warmup_steps: in optimizer steps. From ``warmup_fraction`` once the length of the run is
            known.
        warmup_samples, warmup_fraction: as in the training config.
        compile, dynamo: whether the model is compiled, and the arguments of ``torch.compile``.
        find_unused_parameters, sync_each_batch, bucket_cap_mb, float32: as in the training
            config.
        reduce_dtype: ``float32`` or ``bf16``, as in the training config.
        fsdp, deepspeed: settings of the engine. Empty for the others.
        files: the launch files that were read.
        notices: lines for people.
        origins: the place that set each value, by key, without the defaults. Texts in
            ``plan.json``.
    """

    strategy: str
    launcher: str
    world_size: int
    device: str
    rehearsal: bool
    mixed_precision: str
    micro_batch_size: int
    accumulation_steps: int
    global_batch_size: int
    max_grad_norm: float | None
    optimizer: str
    optimizer_settings: Mapping[str, Any]
    lr: float
    lr_reference: float
    lr_scaling: str
    reference_batch_size: int
    schedule: str
    schedule_settings: Mapping[str, Any]
    warmup_steps: int
    warmup_samples: int | None
    warmup_fraction: float | None
    final_lr_ratio: float
    compile: bool
    context_parallel: int
    find_unused_parameters: bool
    sync_each_batch: bool
    bucket_cap_mb: int | None
    reduce_dtype: str
    float32: str
    fsdp: Mapping[str, Any]
    deepspeed: Mapping[str, Any]
    dynamo: Mapping[str, Any]
    files: tuple[str, ...]
    notices: tuple[str, ...]
    origins: Mapping[str, Origin]

    def origin(self, key: str) -> Origin:
        """Return the place that set a value, for messages."""
        return origin_of(self.origins, key)

    @property
    def precision(self) -> dict[str, str]:
        """Return the dtypes of kept parameters, of computing, of gradients, and of buffers.

        ``reduction`` is the dtype in which gradients go to other ranks, ``gradients`` the dtype in
        which those of micro-batches add up.
        """
        return {
            "parameters": "fp32",
            "compute": self._compute_dtype,
            "reduction": self._reduction_dtype,
            "gradients": self._gradient_dtype,
            "buffers": "fp32",
        }

    @property
    def _compute_dtype(self) -> str:
        if self.mixed_precision != "no":
            return self.mixed_precision
        if self.float32 == "tf32" and self.device == "cuda":
            return "tf32"
        return "fp32"

    @property
    def _reduction_dtype(self) -> str:
        if self.reduce_dtype == "float32" or self.strategy == "single":
            return "fp32"
        return self.reduce_dtype

    @property
    def _gradient_dtype(self) -> str:
        if not self.deepspeed:
            return "fp32"
        configured: str | None = self.deepspeed.get("data_types", {}).get("grad_accum_dtype")
        if configured:
            return configured

        # A single micro-batch leaves nothing to add up, and whole gradients that wait for others
        # have the dtype of the model.
        adds_up = self.accumulation_steps > 1 and not self.find_unused_parameters
        if adds_up or self.mixed_precision == "no":
            return "fp32"
        return self.mixed_precision

    def with_length(self, total_steps: int) -> Plan:
        """Return the plan with the warm-up in steps. A run that is shorter gets a notice."""
        warmup = self.warmup_steps
        if self.warmup_fraction is not None:
            warmup = max(1, round(self.warmup_fraction * total_steps))

        notices = list(self.notices)
        if warmup > total_steps:
            key = "warmup_steps" if self.warmup_samples is None else "warmup_samples"
            notices.append(
                f"{self.origin(key).place}: {key}: the warm-up of {warmup} steps is longer than "
                "the run: the rate never reaches its full value"
            )
        return dataclasses.replace(self, warmup_steps=warmup, notices=tuple(notices))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, and ``precision``, as JSON."""
        found = dataclasses.asdict(self)
        found["origins"] = {key: str(origin) for key, origin in self.origins.items()}
        found["precision"] = self.precision
        return found
