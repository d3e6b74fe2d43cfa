"""Which launch file a document is. No library is imported for the answer."""

from __future__ import annotations

from .documents import Document

# Keys of the top level that only such files have. Few files have none of these.
_KEYS = {
    "accel_config": {
        "compute_environment",
        "distributed_type",
        "machine_rank",
        "num_machines",
        "num_processes",
        "use_cpu",
    },
    "deepspeed": {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"},
}


def launch_option(document: Document) -> str:
    """Return the option that takes a launch file, such as ``accel_config``. "" for another file."""
    found = (option for option, keys in _KEYS.items() if document.data.keys() & keys)
    return next(found, "")
