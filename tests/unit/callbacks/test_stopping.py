"""The last step of a run: its length, a signal, or a stop that code asked for."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run, step_info

from trainer.callbacks.stopping import Stopping


def run_at(step: int, answer: int | None, fingerprints: list[int]) -> Any:
    """A run of ten steps whose ranks have agreed on an answer."""

    def poll(fingerprint: int) -> int | None:
        fingerprints.append(fingerprint)
        return answer

    return fake_run(
        step=step,
        total_steps=10,
        stopping=False,
        stop_signal=0,
        agreement=SimpleNamespace(poll=poll),
        strategy=SimpleNamespace(fingerprint=7),
    )


@pytest.mark.parametrize(("step", "is_last"), [(9, False), (10, True), (11, True)])
def test_training_ends_with_the_last_step(step: int, is_last: bool) -> None:
    run, info = run_at(step, None, fingerprints := []), step_info(step)
    Stopping().on_step(run, info)
    assert info.is_last == is_last
    assert not run.stopping, "nobody asked for a stop"
    assert fingerprints == [7], "what a rank did is compared at each step"


@pytest.mark.parametrize("answer", [0, signal.SIGTERM])
def test_a_stop_that_the_ranks_agreed_on_makes_this_step_the_last(answer: int) -> None:
    run, info = run_at(3, answer, []), step_info(3)
    Stopping().on_step(run, info)
    assert info.is_last and run.stopping
    assert run.stop_signal == answer, "0 where code asked"
