"""The seam: what each strategy owns, gathers, averages and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import STRATEGIES, launch_file, ranks


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [2, 3])
def test_shards_tile_the_model(strategy: str, world: int, tmp_path: Path) -> None:
    config = launch_file(tmp_path / "accel.yaml", strategy, world)
    done = ranks(["tests/workers/shards.py", config, tmp_path / "model"], world)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert f"tiles: {strategy} {world}" in done.stdout
