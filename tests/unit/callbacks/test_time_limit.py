"""``max_time`` asks for the end once, on the main process, when its time has passed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brought_tasks import Plain
from from_launcher import configured
from launchers import json_in
from one_process import log_of, steps

from trainer import Trainer
from trainer.callbacks.time_limit import TimeLimit


def test_training_is_stopped_once_when_the_time_has_passed() -> None:
    stops: list[str] = []
    trainer: Any = SimpleNamespace(
        is_main=True, meter=SimpleNamespace(seconds=0.0), stop=stops.append
    )
    info: Any = None
    limit = TimeLimit("2m")
    for seconds in (1.0, 120.0, 120.5, 130.0):
        trainer.meter.seconds = seconds
        limit.on_step(trainer, info)
        assert stops == (["max_time 2m has passed"] if seconds > 120 else [])


def test_only_the_clock_of_the_main_process_counts() -> None:
    stops: list[str] = []
    trainer: Any = SimpleNamespace(
        is_main=False, meter=SimpleNamespace(seconds=1e6), stop=stops.append
    )
    info: Any = None
    TimeLimit("1s").on_step(trainer, info)
    assert stops == []


@pytest.mark.usefixtures("fresh_accelerate")
def test_max_time_ends_a_run_with_checkpoint_and_evaluation(tmp_path: Path) -> None:
    config = replace(configured(tmp_path), max_steps=100_000, max_time="1s", log_every=1000)
    trainer = Trainer(Plain(), config)
    trainer.run.meter.born = time.perf_counter()  # this process is older
    evaluation = trainer.fit()

    step = trainer.run.step
    assert 1.0 <= trainer.run.meter.seconds < 6.0
    assert 1 < step < 100_000 and evaluation and steps(tmp_path) == [step]
    summary = json_in(tmp_path / "summary.json")
    assert (summary["stopped_by"], summary["steps"]) == ("max_time 1s has passed", step)
    assert f"stopped at step {step} of 100000 (max_time 1s has passed)" in log_of(tmp_path)
