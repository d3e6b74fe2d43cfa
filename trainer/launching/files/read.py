"""Read the files that say how a job runs, strictly, as one Request. Nothing is started here.

A flag typed after ``accelerate launch`` wins over its file, as it does there. What Accelerate would take
without a word and run as something else is a problem with file, line, key, value and the rule.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...config.documents import Document, read_document
from ...errors import COMMAND_LINE, Origin, Sourced
from ..request import Request
from .accelerate_file import read_accelerate_file, read_launch_flags
from .deepspeed_file import read_deepspeed_file
from .fsdp_file import refuse_transformers_fsdp

__all__ = ["kind_of", "read_accelerate_file", "read_deepspeed_file", "read_launch_file", "read_launch_flags"]

# Keys that tell a file apart. A training config shares some names with both of the others.
_TELLING = {
    "accelerate": ("compute_environment", "distributed_type", "num_processes", "num_machines", "machine_rank",
                   "use_cpu"),
    "deepspeed": ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"),
    "training": ("task", "output_dir", "micro_batch_size", "max_steps", "epochs", "lr"),
}  # fmt: skip


def kind_of(doc: Document) -> str:
    """Return what a file is by its keys: ``accelerate``, ``deepspeed`` or ``training``.

    Raises:
        ConfigError: it is for transformers' own trainer.
    """
    refuse_transformers_fsdp(doc)
    # In other files bf16 and fp16 are true or false.
    keys = {key for key, value in doc.data.items() if key not in ("bf16", "fp16") or isinstance(value, dict)}
    found = {kind: len(keys & set(telling)) for kind, telling in _TELLING.items()}
    best = max(found, key=lambda kind: found[kind])
    if found[best]:
        return best
    return "deepspeed" if str(doc.path).endswith(".json") else "training"


def read_launch_file(path: str | Path, processes: int | None = None) -> Request:
    """Read a launch file of either kind, for as many processes as the launcher is told. Raises as the others here."""
    count = None if processes is None else Sourced(processes, Origin(COMMAND_LINE, key="--processes"))
    if kind_of(read_document(path)) == "deepspeed":
        return replace(read_deepspeed_file(path), world_size=count)
    return read_accelerate_file(path, overrides={} if count is None else {"num_processes": count})
