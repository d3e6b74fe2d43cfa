"""What a task makes of step and epoch is the same on every layout, and after a resume.

| promised | strategies and worlds | tests |
|---|---|---|
| Mixup of one strength a step, augmentation by epoch, and a schedule by step in training and evaluation have one process's curve | DDP on 2 with accumulation and loading processes; all on 2 (nightly) | test_what_follows_from_step_and_epoch_has_the_curve_of_one_process |
| So have they after resuming in the middle of an epoch | the same jobs | test_a_resumed_run_goes_on_with_the_moments_of_the_whole_one |
| A callback that the config names is called at each step, and has its state after a resume | the same jobs | test_a_callback_of_the_config_is_called_and_resumed |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launchers import json_in, launch_file, some_quick, worked, wrapper_of
from moments import SAVED_AT, STEPS

QUICK = some_quick("ddp")  # what a task sees is not the strategy's doing


class Found(NamedTuple):
    """What a job left.

    Args:
        facts: world size and class of the model.
        folder: of its runs.
    """

    facts: dict[str, Any]
    folder: Path

    def rows(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def values(self, name: str, key: str) -> dict[int, float]:
        return {row["step"]: row[key] for row in self.rows(name) if key in row}


@cache
def trained(strategy: str, folder: Path) -> Found:
    here = folder / strategy
    here.mkdir()
    world = 1 if strategy == "single" else 2
    told = {
        "accel_config": str(launch_file(here / "accel.yaml", strategy, world)),
        "folder": str(here),
        "world": world,
        "accumulation": world,
        "workers": 0 if strategy == "single" else 2,
    }
    worked(["tests/workers/moments.py", json.dumps(told)], world)
    return Found(json_in(here / "found.json"), here)


def check_layout(found: Found, strategy: str) -> None:
    assert found.facts["world_size"] == 2
    assert found.facts["model_class"].startswith(wrapper_of(strategy))


@pytest.mark.parametrize("strategy", QUICK)
def test_what_follows_from_step_and_epoch_has_the_curve_of_one_process(
    strategy: str, folder: Path
) -> None:
    alone, found = trained("single", folder), trained(strategy, folder)
    check_layout(found, strategy)
    steps = range(1, STEPS + 1)
    assert list(found.values("moments", "loss")) == list(steps)
    for key in ("loss", "part", "eval/loss"):
        wanted = alone.values("moments", key)
        assert found.values("moments", key) == pytest.approx(wanted, rel=1e-5), key

    assert found.values("moments", "at_step") == {step: step for step in steps}
    samples = [0, 8, 16, 24, 26, 34, 42, 50, 52, 60]
    at_epoch = dict(zip(steps, [place / 26 for place in samples], strict=True))
    assert found.values("moments", "at_epoch") == pytest.approx(at_epoch)
    assert found.values("moments", "eval/at_step") == {step: step for step in (4, 8, STEPS)}
    assert len(set(found.values("moments", "part").values())) == STEPS, "drawn anew at each step"


@pytest.mark.parametrize("strategy", QUICK)
def test_a_resumed_run_goes_on_with_the_moments_of_the_whole_one(
    strategy: str, folder: Path
) -> None:
    found = trained(strategy, folder)
    for key in ("loss", "eval/loss"):
        whole = found.values("moments", key)
        rest = {step: value for step, value in whole.items() if step > SAVED_AT}
        assert found.values("moments-resumed", key) == rest, "to the bit"


@pytest.mark.parametrize("strategy", QUICK)
def test_a_callback_of_the_config_is_called_and_resumed(strategy: str, folder: Path) -> None:
    found = trained(strategy, folder)
    check_layout(found, strategy)
    assert found.facts["seen"] == STEPS, "those before the resume included"
