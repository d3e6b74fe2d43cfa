"""What a task makes of step and epoch is the same on every layout, and after a resume.

| promised | strategies and worlds | tests |
|---|---|---|
| Mixup of one strength a step, augmentation by epoch, and a schedule by step in training and evaluation have one process's curve | DDP on 2 with accumulation and loading processes; all on 2 (nightly) | test_what_follows_from_step_and_epoch_has_the_curve_of_one_process |
| So have they after resuming in the middle of an epoch | the same jobs | test_a_resumed_run_goes_on_with_the_moments_of_the_whole_one |
| A callback that the config names is called at each step, and has its state after a resume | the same jobs | test_a_callback_of_the_config_is_called_and_resumed |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import Job, json_in, some_quick, trained
from moments import STEPS

QUICK = some_quick("ddp")  # what a task sees is not the strategy's doing
CONFIG: dict[str, Any] = {
    **{"task": "moments:Moments", "callbacks": [{"moments:Watch": {"first": 1}}]},
    **{"max_steps": STEPS, "global_batch_size": 8, "lr": 0.05},  # four steps an epoch
    **{"log_every": 1, "eval_every": 4, "save_every": 5},
}


@cache
def moments(strategy: str, folder: Path) -> dict[str, Job]:
    """Train whole, and from the checkpoint in the middle of an epoch."""
    here = folder / strategy
    batch = {"micro_batch_size": 8 if strategy == "single" else 2}
    config = {**CONFIG, **batch, "workers": 0 if strategy == "single" else 2}
    middle = here / "whole/checkpoints/step-00000005"
    return trained(strategy, here, {"whole": config, "resumed": {**config, "resume": str(middle)}})


def values(job: Job, key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in job.rows if key in row}


@pytest.mark.parametrize("strategy", QUICK)
def test_what_follows_from_step_and_epoch_has_the_curve_of_one_process(
    strategy: str, folder: Path
) -> None:
    alone, found = (moments(how, folder)["whole"] for how in ("single", strategy))
    steps = range(1, STEPS + 1)
    assert list(values(found, "loss")) == list(steps)
    for key in ("loss", "part", "eval/loss"):
        assert values(found, key) == pytest.approx(values(alone, key), rel=1e-5), key

    assert values(found, "at_step") == {step: step for step in steps}
    samples = [0, 8, 16, 24, 26, 34, 42, 50, 52, 60]
    assert found.column("at_epoch") == pytest.approx([place / 26 for place in samples])
    assert values(found, "eval/at_step") == {step: step for step in (4, 8, STEPS)}
    assert len(set(found.column("part"))) == STEPS, "drawn anew at each step"


@pytest.mark.parametrize("strategy", QUICK)
def test_a_resumed_run_goes_on_with_the_moments_of_the_whole_one(
    strategy: str, folder: Path
) -> None:
    whole, resumed = moments(strategy, folder).values()
    for key in ("loss", "eval/loss"):
        rest = {step: value for step, value in values(whole, key).items() if step > 5}
        assert values(resumed, key) == rest, "to the bit"


@pytest.mark.parametrize("strategy", QUICK)
def test_a_callback_of_the_config_is_called_and_resumed(strategy: str, folder: Path) -> None:
    last = moments(strategy, folder)["resumed"].output_dir / "checkpoints/step-00000010"
    states = json_in(last / "state.json")["callbacks"].values()
    [seen] = [state["seen"] for state in states if "seen" in state]
    assert seen == STEPS, "those before the resume included"
