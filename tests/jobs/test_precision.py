"""The dtypes of a plan are those of the tensors, and gradients add up as in one process: on two
real processes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, launch_file, ranks

ENGINES = {
    "zero": ("zero1", "zero2", "zero3"),
    "others": ("ddp", "fsdp"),
}  # those that one process can run in turn
BFLOAT16 = 2.0**-8  # what one rounding to eight binary digits costs, as of the mean over the ranks


@cache
def everything(engine: str, precision: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each rank saw, by strategy and accumulation."""
    place = folder / f"{engine}-{precision}"
    place.mkdir()
    files = [
        launch_file(place / f"{strategy}.yaml", strategy, 2, precision)
        for strategy in ENGINES[engine]
    ]
    done = ranks(["tests/workers/precision.py", place, *files])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return dict(json.loads((place / "found.json").read_text()))


@pytest.mark.parametrize("precision", ["bf16", pytest.param("no", marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_dtypes_of_the_plan_are_those_of_the_tensors(
    strategy: str, steps: int, precision: str, folder: Path
) -> None:
    engine = "zero" if strategy.startswith("zero") else "others"
    for found in everything(engine, precision, folder)[f"{strategy} {steps}"]:
        promised = {key: [dtype] for key, dtype in found["promised"].items()}
        if strategy == "ddp":  # its reducer sends the gradients that were seen
            promised["reduction"] = []
        assert {key: found[key] for key in promised} == promised
        assert found["promised"]["gradients"] == (
            "bf16" if (engine, steps, precision) == ("zero", 1, "bf16") else "fp32"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accumulated_gradients_keep_the_digits_of_a_single_one(strategy: str, folder: Path) -> None:
    """Of 256 and fifteen times 1 a sum in bfloat16 is 256: an error of 5 %."""
    found = everything("zero" if strategy.startswith("zero") else "others", "bf16", folder)
    for steps in ("1", "16", "16 each"):  # the last with sync_each_batch
        assert max(of_rank["error"] for of_rank in found[f"{strategy} {steps}"]) < BFLOAT16


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_starts_from_the_weights_as_they_were_built(strategy: str, folder: Path) -> None:
    """And not from what casting the model to bfloat16 leaves of them."""
    found = everything("zero" if strategy.startswith("zero") else "others", "bf16", folder)
    assert all(of_rank["exact"] for of_rank in found[f"{strategy} 16"])


@pytest.mark.parametrize("strategy", ENGINES["zero"])
def test_no_step_waits_for_the_device(strategy: str, folder: Path) -> None:
    """DeepSpeed's clock of the throughput is off; on a GPU it would wait around each forward pass
    and each step.
    """
    for of_rank in everything("zero", "bf16", folder)[f"{strategy} 1"]:
        assert of_rank["waits"] == 0
