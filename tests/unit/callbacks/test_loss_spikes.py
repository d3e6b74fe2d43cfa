"""Losses that jump far above those before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import fake_run, step_info
from one_process import fit, log_of
from resuming import Odd

from trainer import Callback, LossSpikes, Run, StepInfo, TrainerError


class Jumps(Callback):
    """Makes the logged loss of one step a hundred times larger."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        assert info.metrics is not None
        if info.step == self.at:
            info.metrics["loss"] *= 100


def judged(spikes: LossSpikes, *losses: float) -> list[str]:
    """Return what is said of these logged losses."""
    run = fake_run()
    for step, loss in enumerate(losses, 1):
        spikes.on_step(run, step_info(step, metrics={"loss": loss}))
    said: list[str] = run.said
    return said


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_spike_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 8, "save_every": 6, "keep_last": 1}
    spikes = LossSpikes(fail=True, memory=4)
    with pytest.raises(TrainerError, match=r"^step 6: the loss .* is a spike: .* before; lower lr"):
        fit(tmp_path, Odd(), Jumps(6), spikes, **settings)
    assert not list(tmp_path.glob("checkpoints/step-*"))


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_spike_that_is_only_reported_is_a_line_of_the_log(tmp_path: Path) -> None:
    spikes = LossSpikes(memory=4)
    run = fit(tmp_path, Odd(), Jumps(6), spikes, save_every=None)
    assert log_of(tmp_path).count(" is a spike: ") == 1
    assert "note: step 6: the loss " in log_of(tmp_path) and run.step == 8
    assert spikes.state_dict()["count"] == 7, "the mean does not follow the spike"


def test_no_loss_is_judged_before_enough_of_them_were_logged() -> None:
    assert judged(LossSpikes(memory=4), 1.0, 1.0, 1.0, 100.0) == []
    assert len(judged(LossSpikes(memory=4), 1.0, 1.0, 1.0, 1.0, 100.0)) == 1


def test_a_loss_within_the_usual_deviation_is_no_spike() -> None:
    usual = [1.0, 1.5] * 10
    assert judged(LossSpikes(), *usual, 2.0) == []
    [line] = judged(LossSpikes(), *usual, 4.0)
    assert line.startswith("note: step 21: the loss 4 is a spike: 1.2")
    assert judged(LossSpikes(deviations=20.0), *usual, 4.0) == []


def test_steps_that_are_not_logged_or_not_finite_are_left_to_others() -> None:
    spikes = LossSpikes(memory=1)
    spikes.on_step(fake_run(), step_info())
    assert judged(spikes, float("nan"), float("inf")) == []
    assert spikes.count == 0


def test_a_resumed_run_judges_as_the_run_before() -> None:
    before, resumed = LossSpikes(memory=4), LossSpikes(memory=4)
    judged(before, 1.0, 1.1, 1.0, 1.1)
    resumed.load_state_dict(before.state_dict())
    assert judged(resumed, 9.0) == judged(before, 9.0) != []
