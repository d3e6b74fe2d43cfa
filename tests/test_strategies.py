"""The seam: what each strategy owns, gathers, averages and exports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jobs import BIN, ROOT, STRATEGIES, clean_environment, free_port


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [2, 3])
def test_shards_tile_the_model(strategy: str, world: int, tmp_path: Path) -> None:
    text = (ROOT / "accel_configs" / f"{strategy}.yaml").read_text()
    config = tmp_path / "accel.yaml"
    config.write_text(text.replace("num_processes: 2", f"num_processes: {world}"))
    words = [BIN / "torchrun", "--nproc_per_node", str(world), "--master_port", str(free_port())]
    done = subprocess.run(
        [*words, "tests/shard_worker.py", config, tmp_path / "model"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert f"tiles: {strategy} {world}" in done.stdout
