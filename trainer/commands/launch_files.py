"""Launch files as ``trainer check`` takes them: in any order among other files, and alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config.documents import Document, read_document
from ..errors import COMMAND_LINE, Origin, Sourced
from ..launching.cpu_rehearsal import rehearsal_changes, rehearsal_precision
from ..launching.details import Rows, details, written
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.files.deepspeed_file import read_deepspeed_file
from ..launching.files.fsdp_file import refuse_other_files
from ..launching.request import Request, Section

# Keys that tell a file apart. A training config shares some names with both of the others.
_TELLING = {
    "accelerate": ("compute_environment", "distributed_type", "num_processes", "num_machines", "machine_rank",
                   "use_cpu"),
    "deepspeed": ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"),
    "training": ("task", "output_dir", "micro_batch_size", "max_steps", "epochs", "lr"),
}  # fmt: skip


def kind_of(doc: Document) -> str:
    """Return what a file is by its keys, where no option says it: ``accelerate``, ``deepspeed`` or
    ``training``.

    Raises:
        ConfigError: it is for transformers' own trainer.
    """
    refuse_other_files(doc)
    # In other files bf16 and fp16 are true or false.
    keys = {
        key
        for key, value in doc.data.items()
        if key not in ("bf16", "fp16") or isinstance(value, dict)
    }
    found = {kind: len(keys & set(telling)) for kind, telling in _TELLING.items()}
    best = max(found, key=lambda kind: found[kind])
    if found[best]:
        return best
    return "deepspeed" if str(doc.path).endswith(".json") else "training"


def read_launch_file(path: str | Path, processes: int | None = None) -> Request:
    """Read a launch file of either kind, for as many processes as the launcher is told. Raises as
    the others here.
    """
    count = (
        None if processes is None else Sourced(processes, Origin(COMMAND_LINE, key="--processes"))
    )
    if kind_of(read_document(path)) == "deepspeed":
        return replace(read_deepspeed_file(path), world_size=count)
    return read_accelerate_file(path, overrides={} if count is None else {"num_processes": count})


def request_rows(request: Request, world_size: int | None, *, rehearsal: bool) -> Rows:
    """Return the rows of a launch file alone; what it leaves to the training config is left out."""
    asked = {
        "micro": request.micro_batch_size,
        "accumulation": request.accumulation_steps,
        "global": request.global_batch_size,
    }
    precision, norm = request.mixed_precision, request.max_grad_norm
    fsdp, deepspeed = rehearsal_changes(request) if rehearsal else (request.fsdp, request.deepspeed)
    rows = [
        (
            "strategy",
            "single" if request.strategy == "ddp" and world_size == 1 else request.strategy,
        ),
        (
            "world size",
            "the number of processes comes from the launcher"
            if world_size is None
            else str(world_size),
        ),
    ]
    if precision is not None:
        rows.append(
            (
                "precision",
                rehearsal_precision(request.strategy, precision.value)
                if rehearsal
                else precision.value,
            )
        )
    if batch := ", ".join(
        f"{name} {value.value}" for name, value in asked.items() if value is not None
    ):
        rows.append(("batch", batch))
    for name, section in (("optimizer", request.optimizer), ("schedule", request.scheduler)):
        if section is not None:
            rows.append((name, _section(section)))
    if norm is not None:
        rows.append(("clipping", f"global norm {norm.value:g}" if norm.value else "none"))
    return [*rows, *details({"fsdp": fsdp, "deepspeed": deepspeed, "dynamo": request.dynamo})]


def _section(section: Section) -> str:
    values = {key: found.value for key, found in section.values.items()}
    defaults = {key: found.value for key, found in section.defaults.items()}
    return ", ".join(
        [section.name, *written(values), *(f"{text} (default)" for text in written(defaults))]
    )
