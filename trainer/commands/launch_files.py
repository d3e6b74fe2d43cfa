"""Read launch files for ``trainer check``: their kind is found by their keys, not by an option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config.documents import Document, read_document
from ..errors import COMMAND_LINE, Origin, Sourced
from ..launching.cpu_rehearsal import rehearsal_precision, rehearsed
from ..launching.details import Rows, details
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.files.deepspeed_file import read_deepspeed_file
from ..launching.request import Request, Section

# Keys by which a file is recognized. A training config shares some names with both of the others.
_TYPICAL_KEYS = {
    "accelerate": {
        "compute_environment",
        "distributed_type",
        "num_processes",
        "num_machines",
        "machine_rank",
        "use_cpu",
    },
    "deepspeed": {
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "bf16",
        "fp16",
    },
    "training": {"task", "output_dir", "micro_batch_size", "max_steps", "epochs", "lr"},
}


def kind_of(doc: Document) -> str:
    """Return the kind of a file by its keys: ``accelerate``, ``deepspeed`` or ``training``."""
    keys = set()
    for key, value in doc.data.items():
        # bf16 and fp16 are sections in DeepSpeed's files; in others they are true or false.
        if key not in ("bf16", "fp16") or isinstance(value, dict):
            keys.add(key)

    matches = {kind: len(keys & typical) for kind, typical in _TYPICAL_KEYS.items()}
    best = max(matches, key=lambda kind: matches[kind])
    if matches[best]:
        return best
    return "deepspeed" if str(doc.path).endswith(".json") else "training"


def read_launch_file(path: str | Path, processes: int | None = None) -> Request:
    """Read an accelerate YAML or a DeepSpeed JSON.

    Args:
        path: of the file.
        processes: how many the launcher is to start; None for as many as the file says, if it does.

    Raises:
        ConfigError: something in it is wrong.
    """
    count = None
    if processes is not None:
        count = Sourced(processes, Origin(COMMAND_LINE, key="--processes"))

    if kind_of(read_document(path)) == "deepspeed":
        return replace(read_deepspeed_file(path), world_size=count)
    overrides = {} if count is None else {"num_processes": count}
    return read_accelerate_file(path, overrides=overrides)


def request_rows(request: Request, world_size: int | None, *, rehearsal: bool) -> Rows:
    """Return names and values that describe a launch file without a training config.

    What the file leaves to the training config has no row.

    Args:
        request: what the file says.
        world_size: None where only the launcher knows it.
        rehearsal: show what runs on CPUs, where that differs from GPUs.
    """
    if rehearsal:
        request = rehearsed(request)

    strategy = request.strategy
    if strategy == "ddp" and world_size == 1:
        strategy = "single"
    world = "the number of processes comes from the launcher"
    if world_size is not None:
        world = str(world_size)
    rows = [("strategy", strategy), ("world size", world)]

    if request.mixed_precision is not None:
        precision = request.mixed_precision.value
        if rehearsal:
            precision = rehearsal_precision(request.strategy, precision)
        rows.append(("precision", precision))

    batch = _batch(request)
    if batch:
        rows.append(("batch", batch))
    if request.optimizer is not None:
        rows.append(("optimizer", _section(request.optimizer)))
    if request.scheduler is not None:
        rows.append(("schedule", _section(request.scheduler)))
    if request.max_grad_norm is not None:
        norm = request.max_grad_norm.value
        rows.append(("clipping", f"global norm {norm:g}" if norm else "none"))

    rows += details(vars(request))
    return rows


def _batch(request: Request) -> str:
    sizes = {
        "micro": request.micro_batch_size,
        "accumulation": request.accumulation_steps,
        "global": request.global_batch_size,
    }
    return ", ".join(f"{name} {size.value}" for name, size in sizes.items() if size is not None)


def _section(section: Section) -> str:
    """Return an optimizer or scheduler section in one line."""
    found = {**section.defaults, **section.values}
    return ", ".join([section.name, *(f"{key} {item.value}" for key, item in found.items())])
