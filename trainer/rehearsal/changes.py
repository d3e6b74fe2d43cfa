"""The single changes that save memory, to be tried if a job does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.documents import read_document
from ..script import load_config, load_task
from .job import Job

TEMPLATE = Path(__file__).parents[1] / "commands/templates/classifier"  # of `trainer new`
_BY_TASK = "task_settings.activation_checkpointing"
_BY_FSDP = "fsdp_activation_checkpointing"


def committed(name: str) -> dict[str, Any]:
    """Return the content of a launch file that ``trainer new`` writes (accel_configs/ddp.yaml)."""
    return read_document(TEMPLATE / name).data


def changes_of(job: Job, plan: Mapping[str, Any]) -> Iterator[tuple[str, Job]]:
    """Yield changes that save memory, with the changed job. Those that cost least come first."""
    task, _ = load_task(load_config(job.words))
    recomputes = getattr(task, "activation_checkpointing", None)
    fsdp = job.launch_file.get("fsdp_config")
    if recomputes is False:
        yield f"{_BY_TASK}: true", job.with_settings(**{_BY_TASK: "true"})
    elif recomputes is None and fsdp and not fsdp.get(_BY_FSDP):
        file = {**job.launch_file, "fsdp_config": {**fsdp, _BY_FSDP: True}}
        yield f"{_BY_FSDP}: true", job._replace(launch_file=file)

    half, is_odd = divmod(plan["micro_batch_size"], 2)
    if not is_odd:
        accumulation = 2 * plan["accumulation_steps"]
        smaller = job.with_settings(micro_batch_size=half, accumulation_steps=accumulation)
        yield f"micro_batch_size: {half}", smaller

    # The settings that the launch file may have given.
    kept = ("mixed_precision", "micro_batch_size", "accumulation_steps")
    same = job.with_settings(**{key: plan[key] for key in kept})
    for name in ("accel_configs/fsdp.yaml", "accel_configs/zero3_offload.yaml")[bool(fsdp) :]:
        yield name, same._replace(launch_file=committed(name))
