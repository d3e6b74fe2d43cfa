"""Live bytes on two real processes are those of the formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launchers import launch_file, ranks, some_quick


@pytest.mark.parametrize("precision", ["bf16", pytest.param("no", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["llama", pytest.param("cnn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how", [*some_quick("fsdp", "zero2", "zero3"), pytest.param("zero3_offload", marks=pytest.mark.slow)]
)
def test_live_bytes_are_those_of_the_formula(how: str, name: str, precision: str, tmp_path: Path) -> None:
    config = launch_file(tmp_path / "accel.yaml", how, mixed_precision=precision)
    done = ranks(["tests/workers/memory.py", config, name])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    once, accumulating = zip(told["measured"], told["predicted"], strict=True)
    if how == "zero1":  # its gradients are let go as they are exchanged: whole only before the boundary
        once = accumulating
    for measured, predicted in (once, accumulating, *zip(told["states"], told["predicted"], strict=True)):
        assert measured == pytest.approx(predicted, rel=0.01)
