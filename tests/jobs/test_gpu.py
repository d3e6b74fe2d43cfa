"""On a machine with GPUs (make gpu): the same files, the same curves, on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launchers import STRATEGIES, command, run

pytestmark = pytest.mark.gpu
DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1", "--max_steps", "8", "--warmup_steps", "2"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_on_as_many_gpus_as_there_are(strategy: str, tmp_path: Path) -> None:
    """The committed files ask for two processes; with one GPU there is one, which is plain training for DDP."""
    gpus = torch.cuda.device_count()
    assert gpus, "make gpu needs a GPU"
    if strategy == "ddp" and gpus == 1:
        words = command("python", "single")
    elif strategy.startswith("zero"):
        words = command("deepspeed", strategy, world=min(2, gpus))
    else:
        text = Path(f"accel_configs/{strategy}.yaml").read_text()
        yaml = tmp_path / f"{strategy}.yaml"
        yaml.write_text(text.replace("num_processes: 2", f"num_processes: {min(2, gpus)}"))
        words = command("torchrun", str(yaml), world=min(2, gpus))
    job = run([*words, *DIGITS], tmp_path / "run").ok()
    rehearsed = run([*command("python", "single"), *DIGITS, "--accumulation_steps", "2"], tmp_path / "one").ok()
    assert job.plan["device"] == rehearsed.plan["device"] == "cuda" and not job.plan["rehearsal"]
    # Kernels on a GPU pick other orders of summation for other shapes.
    assert job.losses == pytest.approx(rehearsed.losses, rel=1e-3)
