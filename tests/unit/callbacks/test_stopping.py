"""The last step of a run: its length, a signal, or a stop that code asked for."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run, step_info

from trainer.callbacks.stopping import Stopping
from trainer.position import Position


def run_at(
    step: int, answer: int | None, fingerprints: list[int], *, stop_at: int | None = None
) -> Any:
    """A run of ten steps whose ranks have agreed on an answer."""

    def poll(fingerprint: int) -> int | None:
        fingerprints.append(fingerprint)
        return answer

    return fake_run(
        step=step,
        total_steps=10,
        last_step=stop_at or 10,
        config=SimpleNamespace(stop_at=stop_at),
        position=Position(),
        agreement=SimpleNamespace(poll=poll),
        strategy=SimpleNamespace(fingerprint=7),
    )


@pytest.mark.parametrize(("step", "is_last"), [(9, False), (10, True), (11, True)])
def test_training_ends_with_the_last_step(step: int, is_last: bool) -> None:
    run, info = run_at(step, None, fingerprints := []), step_info(step)
    Stopping().on_step(run, info)
    assert info.is_last == is_last
    assert not run.position.stopping, "nobody asked for a stop"
    assert fingerprints == [7], "what a rank did is compared at each step"


@pytest.mark.parametrize("answer", [0, signal.SIGTERM])
def test_a_stop_that_the_ranks_agreed_on_makes_this_step_the_last(answer: int) -> None:
    run, info = run_at(3, answer, []), step_info(3)
    Stopping().on_step(run, info)
    assert info.is_last and run.position.stopping
    assert run.position.stop_signal == answer, "0 where code asked"


def test_stop_at_ends_a_run_before_the_last_step_of_its_schedule() -> None:
    for step in (3, 4):
        run, info = run_at(step, None, [], stop_at=4), step_info(step)
        Stopping().on_step(run, info)
        assert info.is_last == (step == 4)
        assert run.position.stop_reason == ("stop_at 4" if step == 4 else "")

    resumed = run_at(4, None, [], stop_at=4)
    Stopping().on_start(resumed)
    assert resumed.position.stop_reason == "stop_at 4", "also where a resumed run makes no step"

    done = run_at(10, None, [], stop_at=10)
    Stopping().on_step(done, step_info(10))
    assert done.position.stop_reason == "", "the end of the schedule is no early end"
