"""The last step of a run: its length, a signal, or a stop that code asked for."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run, step_info
from launchers import json_in
from one_process import fit

from trainer.callbacks.stopping import Stopping
from trainer.position import Position


def run_at(step: int, answer: int | None, fingerprints: list[int]) -> Any:
    """A run of ten steps whose ranks have agreed on an answer."""

    def poll(fingerprint: int) -> int | None:
        fingerprints.append(fingerprint)
        return answer

    return fake_run(
        step=step,
        total_steps=10,
        last_step=10,
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


@pytest.mark.usefixtures("fresh_accelerate")
def test_stop_at_ends_a_run_before_the_last_step_of_its_schedule(tmp_path: Path) -> None:
    def stopped_by(**settings: Any) -> tuple[int, str | None]:
        fit(tmp_path, max_steps=4, **settings)
        summary = json_in(tmp_path / "summary.json")
        return summary["steps"], summary["stopped_by"]

    assert stopped_by(stop_at=2) == (2, "stop_at 2")
    (tmp_path / "summary.json").unlink()
    shutil.rmtree(tmp_path / "model")
    assert stopped_by(stop_at=2, resume="auto") == (2, "stop_at 2"), "a resumed run without a step"
    # The end of the schedule is no early end.
    assert stopped_by(stop_at=4, resume="auto") == (4, None)
