"""Launch files that people and their tools wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from deepspeed.runtime.config import DeepSpeedConfig
from launch_texts import WRITTEN, complaint, flag
from launchers import json_in

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.yaml")), ids=lambda path: path.name)
def test_real_accelerate_files(path: Path) -> None:
    """On two processes each runs, or, with one process by its type, is answered with one line."""
    written = yaml.safe_load(path.read_text())
    two = flag(2, "num_processes")
    if written["distributed_type"] == "NO":
        assert "must be 1 under" in complaint(lambda: read_accelerate_file(path, overrides=two))
        assert read_accelerate_file(path, overrides=flag(1, "num_processes")).strategy == "single"
        return
    request = read_accelerate_file(path, overrides=two)
    stage = (written.get("deepspeed_config") or {}).get("zero_stage")
    assert (
        request.strategy
        == {"MULTI_GPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": f"zero{stage}"}[
            written["distributed_type"]
        ]
    )
    assert request.settings["mixed_precision"].value == written["mixed_precision"]


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.json")), ids=lambda path: path.name)
def test_real_deepspeed_files(path: Path) -> None:
    written = json_in(path)
    request = read_deepspeed_file(path)
    stage = written["zero_optimization"]["stage"]
    assert request.strategy == (f"zero{stage}" if stage else "ddp")
    assert request.settings["mixed_precision"].value == (
        "bf16" if written.get("bf16", {}).get("enabled") is True else "fp16"
    )
    assert '"auto"' not in json.dumps(request.deepspeed)
    # DeepSpeed reads what is left, and understands the same stage.
    read = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **request.deepspeed})
    assert read.zero_config.stage == stage
