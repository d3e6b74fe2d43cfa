"""The banner's rows, in words of the plan and of what was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit, log_of

PLAN: dict[str, Any] = {
    "strategy": "ddp",
    "launcher": "torchrun",
    "world_size": 4,
    "device": "cpu",
    "rehearsal": False,
    "precision": {"parameters": "fp32", "compute": "bf16"},
    "micro_batch_size": 8,
    "accumulation_steps": 2,
    "global_batch_size": 64,
    "optimizer": "adamw",
    "lr": 0.1,
    "lr_scaling": "none",
    "lr_reference": 0.05,
    "reference_batch_size": 32,
    "schedule": "cosine",
    "schedule_settings": {"final": 0.1},
    "warmup_samples": None,
    "warmup_fraction": None,
    "warmup_steps": 0,
    "max_grad_norm": 1.0,
    "fsdp": {
        "fsdp_version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "min_num_params": 100_000_000,
        "state_dict_type": "SHARDED_STATE_DICT",
        "reshard_after_forward": True,
        "backward_prefetch": "NO_PREFETCH",
    },
    "deepspeed": {},
    "dynamo": {"backend": "no"},
}


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_banner_of_a_run_tells_what_was_built(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=2)
    log = log_of(tmp_path)
    for name in ("run", "strategy", "batch", "optimizer", "data", "model", "machine"):
        assert [line.split()[0] for line in log.splitlines() if line.strip()].count(name) == 1, name
    begin = log.index("-" * 80)
    table = log[begin : log.index("-" * 80, begin + 80)].splitlines()
    assert len(table) <= 10 and max(map(len, table)) <= 80 + len(str(tmp_path))
