"""The plan: the record of what runs. ``launching.resolve`` makes it; everything else reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import DEFAULT, Origin


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What runs. Written to ``plan.json`` beside the run, and shown as the banner.

    Args:
        strategy: ``single``, ``ddp``, ``fsdp``, ``zero1``, ``zero2`` or ``zero3``.
        launcher: ``python``, ``accelerate``, ``torchrun``, ``deepspeed``, ``srun``, ``mpirun`` or
            ``environment``.
        world_size: processes in all.
        num_machines: that share the processes, as the launcher says, or else the launch file.
        device: ``cuda`` or ``cpu``.
        rehearsal: whether a strategy for several processes runs on CPUs, over gloo.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        micro_batch_size: examples per process and backward.
        accumulation_steps: backwards per optimizer step.
        global_batch_size: examples per optimizer step, the product of these two and
            ``data_parallel_size``.
        max_grad_norm: the global norm is clipped to it; None does not clip.
        optimizer, optimizer_settings: ``adamw``, ``adam``, ``sgd`` or a class, with all of its
            settings but the rate.
        lr: the learning rate that runs, scaled from ``lr_reference`` by ``lr_scaling``.
        lr_reference, lr_scaling, reference_batch_size: the rate that was asked for, the rule, the
            batch it belongs to.
        schedule, schedule_settings, final_lr_ratio: as in the training config.
        warmup_steps: in optimizer steps; from ``warmup_fraction`` once the length of the run is
            known.
        warmup_samples, warmup_fraction: as in the training config.
        compile, dynamo: whether the model is compiled, and what ``torch.compile`` is given.
        find_unused_parameters, sync_each_batch, bucket_cap_mb, float32: as in the training config.
        fsdp, deepspeed: settings of the engine; empty for the others.
        files: the launch files that were read.
        notices: what was changed or has no effect, one line each.
        origins: of each value, by key; absent for what is left at its default. Text in
            ``plan.json``.
    """

    strategy: str
    launcher: str
    world_size: int
    num_machines: int
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
    find_unused_parameters: bool = False
    sync_each_batch: bool = False
    bucket_cap_mb: int | None = None
    float32: str = "exact"
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def origin(self, key: str) -> Origin:
        """Return where a value was set, for messages."""
        return self.origins.get(key, DEFAULT)

    @property
    def tensor_parallel_size(self) -> int:
        """Return how many ranks in a row divide the layers among them, and so share their batches."""
        return int(self.fsdp.get("tp_size", 1))

    @property
    def data_parallel_size(self) -> int:
        """Return how many ranks, or groups of them, have batches of their own."""
        return self.world_size // self.tensor_parallel_size

    @property
    def precision(self) -> dict[str, str]:
        """Return dtypes: of kept parameters, of computing, of gradients on their way and as they
        add up, of buffers.
        """
        full = "tf32" if self.float32 == "tf32" and self.device == "cuda" else "fp32"
        compute = {"no": full, "bf16": "bf16", "fp16": "fp16"}[self.mixed_precision]
        reduction = str(self.deepspeed.get("communication_data_type") or "fp32").lower()
        gradients = "fp32"
        if self.deepspeed:
            # A single micro-batch leaves nothing to add up, and whole gradients that wait have the
            # dtype of the model.
            adds_up = self.accumulation_steps > 1 and not self.find_unused_parameters
            asked = self.deepspeed.get("data_types", {}).get("grad_accum_dtype")
            gradients = asked or (
                self.mixed_precision if self.mixed_precision != "no" and not adds_up else "fp32"
            )
        return {
            "parameters": "fp32", "compute": compute, "reduction": reduction, "gradients": gradients, "buffers": "fp32"
        }  # fmt: skip

    def with_length(self, total_steps: int) -> Plan:
        """Return the plan of a run of known length: warm-up in steps, and a notice where the run
        ends within it.
        """
        warmup, notices = self.warmup_steps, self.notices
        if self.warmup_fraction is not None:
            warmup = max(1, round(self.warmup_fraction * total_steps))
        if warmup > total_steps:
            key = "warmup_steps" if self.warmup_samples is None else "warmup_samples"
            rule = f"the warm-up of {warmup} steps is longer than the run: the rate never reaches its full value"
            notices = (*notices, f"{self.origin(key).place}: {key}: {rule}")
        return dataclasses.replace(self, warmup_steps=warmup, notices=tuple(dict.fromkeys(notices)))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ``data_parallel_size`` and ``precision``, as JSON holds them."""
        origins = {key: str(origin) for key, origin in self.origins.items()}
        more = {"data_parallel_size": self.data_parallel_size, "precision": self.precision}
        return dataclasses.asdict(self) | {"origins": origins} | more
