"""The launch file that ``trainer plan --write`` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.commands.planner.costs import OFFERED
from trainer.commands.planner.launch_file import accelerate_yaml
from trainer.launching.files.accelerate_file import read_accelerate_file


@pytest.mark.parametrize(("strategy", "offload"), OFFERED)
def test_written_launch_file_reads_back_strictly(
    strategy: str, offload: str, tmp_path: Path
) -> None:
    file = tmp_path / "accel.yaml"
    file.write_text(
        accelerate_yaml(
            strategy, world_size=16, num_machines=2, mixed_precision="bf16", offload=offload
        )
    )
    request = read_accelerate_file(str(file))
    assert request.world_size is not None and request.mixed_precision is not None
    found = (
        request.strategy,
        request.world_size.value,
        request.num_machines,
        request.mixed_precision.value,
    )
    assert found == (strategy, 16, 2, "bf16")
    zero = request.deepspeed.get("zero_optimization", {})
    on_host = [
        key
        for key in ("offload_optimizer", "offload_param")
        if (zero.get(key) or {}).get("device") == "cpu"
    ]
    wanted = {"none": 0, "optimizer": 1, "all": 2}[offload] if strategy.startswith("zero") else 0
    assert len(on_host) == wanted and bool(request.fsdp.get("cpu_offload")) == (
        strategy == "fsdp" and offload == "all"
    )
