"""Training without a script, started by a launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import BIN, clean_environment, free_port, run


@pytest.mark.slow
def test_deepspeeds_launcher_starts_the_command(tmp_path: Path) -> None:
    """It puts --local_rank before the name of the command."""
    words = [
        str(BIN / "deepspeed"),
        "--num_gpus",
        "2",
        "--master_port",
        str(free_port()),
        "--module",
        "trainer",
        "train",
    ]
    words += [
        "--deepspeed",
        "ds_configs/zero2.json",
        "--config",
        "examples/configs/digits_cnn.yaml",
    ]
    job = run(
        [*words, "--max_steps", "2", "--warmup_steps", "1"],
        tmp_path / "run",
        environment=clean_environment(),
    ).ok()
    assert (job.plan["strategy"], job.plan["world_size"], job.plan["launcher"]) == (
        "zero2",
        2,
        "deepspeed",
    )
