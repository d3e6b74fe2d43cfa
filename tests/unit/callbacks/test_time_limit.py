"""``max_time`` asks for the end once, on the main process, when its time has passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
