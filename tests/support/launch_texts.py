"""Launch files as tests begin them, misspelt keys, and what a reader complains of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from launchers import ROOT
from origins import sourced

from trainer.errors import ConfigError, Sourced

WRITTEN = ROOT / "tests/launch_files"  # as people and their tools write them

DDP = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
FSDP1 = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 1\n"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
BY_FILE = f"{ZERO}  deepspeed_config_file: ds.json\n"

Write = Callable[[str, str], str]


def flag(value: Any, name: str) -> dict[str, Sourced[Any]]:
    return {name: sourced(value, f"command line (--{name})")}


def complaint(read: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        read()
    return str(caught.value)


FULL = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "min_loss_scale": 1},
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "allgather_bucket_size": 2e8,
    },
    "gradient_accumulation_steps": 2,
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": "auto",
}
