"""The single changes that save memory, to be tried if a job does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..script import load_config, load_task
from .job import Job

_FSDP = {
    "distributed_type": "FSDP",
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}
# The sections of launch files, each with the settings of a change.
_RECOMPUTED = ("fsdp_config", {"fsdp_activation_checkpointing": True})
_OFFLOADED = (
    ("fsdp_config", {"fsdp_offload_params": True}),
    ("deepspeed_config", {"offload_optimizer_device": "cpu"}),
    ("zero_optimization", {"offload_optimizer": {"device": "cpu"}}),
)


def changes_of(job: Job, plan: Mapping[str, Any]) -> Iterator[tuple[str, Job]]:
    """Yield changes that save memory, with the changed job. Those that cost least come first."""
    task, _ = load_task(load_config(job.words))
    recomputes = getattr(task, "activation_checkpointing", None)
    if recomputes is None:
        yield from _with(job, *_RECOMPUTED)
    elif not recomputes:
        settings = {"task_settings.activation_checkpointing": "true"}
        yield "task_settings.activation_checkpointing: true", job.with_settings(**settings)

    if plan["micro_batch_size"] % 2 == 0:
        half = plan["micro_batch_size"] // 2
        smaller = job.with_settings(
            micro_batch_size=half, accumulation_steps=2 * plan["accumulation_steps"]
        )
        yield f"micro_batch_size: {half}", smaller

    if job.gpus > 1 and "fsdp_config" not in job.launch_file:
        # The settings that the launch file may have given.
        kept = ("mixed_precision", "micro_batch_size", "accumulation_steps")
        same = job.with_settings(**{key: plan[key] for key in kept})
        yield "accel_configs/fsdp.yaml", replace(same, launch_file=_FSDP)
    for section, changed in _OFFLOADED:
        yield from _with(job, section, changed)


def _with(job: Job, section: str, changed: dict[str, Any]) -> Iterator[tuple[str, Job]]:
    """Yield the job with other settings in a section, if the launch file has other values there."""
    before = job.launch_file.get(section)
    if before is not None and not before.items() >= changed.items():
        file = {**job.launch_file, section: {**before, **changed}}
        yield f"{section}: {changed}", replace(job, launch_file=file)
