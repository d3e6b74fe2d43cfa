"""Schedules of the learning rate continue at the step of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit, rows

from trainer.checkpoint import store

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "linear", "warmup_steps": 3},
        {"schedule": "wsd", "schedule_settings": {"decay_steps": 3}},
        {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.9}},
        {
            "schedule": "torch:MultiStepLR",
            "schedule_settings": {"milestones": [3, 5], "gamma": 0.5},
        },
        {
            "schedule": "torch:CosineAnnealingLR",
            "schedule_settings": {"T_max": 8},
            "warmup_steps": 5,
        },
        {"schedule": "torch:OneCycleLR", "schedule_settings": {"max_lr": 0.1, "total_steps": 9}},
    ],
    ids=lambda schedule: schedule["schedule"],
)
def test_schedules_resume_at_their_step(schedule: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path / "run", **schedule)
    fit(
        tmp_path / "new",
        resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)),
        **schedule,
    )
    ours, theirs = (
        [(row["lr"], row["loss"]) for row in rows(tmp_path / name)] for name in ("run", "new")
    )
    assert theirs == ours[4:]


def test_another_schedule_takes_its_own_rate_at_that_step(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(4))
    fit(tmp_path / "new", resume=resume, schedule="linear", allow_config_change=True)
    assert rows(tmp_path / "new")[0]["lr"] == pytest.approx(0.05 * (1 - 4 / 8))
