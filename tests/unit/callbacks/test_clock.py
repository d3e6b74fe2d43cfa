"""The clock of a run, and attempts.json."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run, step_info
from launchers import json_in

from trainer.callbacks.clock import Clock


class Meter:
    """A clock that stands still, and the samples that it was given."""

    def __init__(self) -> None:
        self.seconds = 10.0
        self.spent = {"set-up": 4.0}
        self.samples: list[int] = []
        self.started = False

    def start(self) -> None:
        self.started = True

    def step(self, samples: int) -> None:
        self.samples.append(samples)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run that was resumed at step 2 and saves every fourth step."""

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    return fake_run(
        meter=Meter(),
        directory=SimpleNamespace(main=True, path=tmp_path, write=write),
        step=2,
        position=SimpleNamespace(step_began=0),
        saves_at=lambda step: step % 4 == 0,
    )


def advance(clock: Clock, run: Any, step: int) -> None:
    run.step, run.position.step_began = step, 8 * (step - 1)
    clock.on_step(run, step_info(step))


def last_steps(run: Any) -> list[int]:
    rows = json_in(run.directory.path / "attempts.json")
    return [row["last_step"] for row in rows]


def test_each_step_counts_its_own_samples(run: Any) -> None:
    clock = Clock()
    clock.on_start(run)
    assert run.meter.started
    advance(clock, run, 3)
    advance(clock, run, 4)
    assert run.meter.samples == [8, 8]


def test_attempts_are_written_at_once_where_a_checkpoint_is_due(run: Any) -> None:
    clock = Clock()
    clock.on_start(run)
    found = []
    for step in (3, 4, 5, 6, 7, 8):
        advance(clock, run, step)
        found += last_steps(run)
    assert found == [3, 4, 4, 4, 4, 8], "otherwise every few seconds"


def test_the_summary_has_all_attempts(run: Any) -> None:
    first = Clock()
    first.on_start(run)
    advance(first, run, 4)
    run.step = 4
    second = Clock()
    second.on_start(run)
    advance(second, run, 5)
    attempts = second.summary()["attempts"]
    assert [(attempt["first_step"], attempt["last_step"]) for attempt in attempts] == [
        (2, 4),
        (4, 5),
    ]
    assert all(attempt["started"] > 1e9 and attempt["seconds"] >= 0 for attempt in attempts)
    assert last_steps(run) == [4, 5]
