"""Trials: the error in a log, and the rule that decides whether two runs are the same."""

from __future__ import annotations

import pytest
from judged_curves import BY_RANK, FIRST, KINK, LOST, NUDGED, REFERENCE, STEADY, curve

from trainer.commands.runs import Run
from trainer.commands.trials import BOUNDS, Sameness, judge, last_error


def test_last_error_of_a_log() -> None:
    assert last_error("step 1\n\nrank 0: train.yaml:3: lr: -1: must be above 0\n=====\n") == (
        "rank 0: train.yaml:3: lr: -1: must be above 0"
    )
    assert (
        last_error("Traceback (most recent call last):\n  x\nValueError: no\nmore of it\n")
        == "ValueError: no"
    )
    assert last_error("killed\n\n") == "killed"
    assert last_error("") == ""
    report = "Traceback (most recent call last):\nChildFailedError: \nRoot Cause (first observed failure):\n[0]:\n  rank : 0"
    assert (
        last_error(f"{report}\n  traceback : a.yaml:5: lr: -1: no\n====\n")
        == "a.yaml:5: lr: -1: no"
    )
    thrown = "Traceback (most recent call last):\n  x\n  ValueError: no\n"
    assert last_error(f"{report}\n  traceback : {thrown}\n====\n") == "ValueError: no"


@pytest.mark.parametrize(
    ("run", "nudged", "expected"),
    [
        (curve("ddp", *[5e-6] * 8), [], Sameness.SAME),
        (KINK, [], Sameness.UNKNOWN),
        (KINK, [NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY, NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY], Sameness.DIFFERS),
        (BY_RANK, [NUDGED], Sameness.DIFFERS),
        (FIRST, [NUDGED], Sameness.DIFFERS),
        (LOST, [NUDGED], Sameness.DIFFERS),
        (curve("ddp", *[0.0] * 7, 1.0), [], Sameness.DIFFERS),
    ],
)
def test_judge_two_curves(run: Run, nudged: list[Run], expected: Sameness) -> None:
    assert judge(run, REFERENCE, ("loss", "grad_norm"), BOUNDS["no"], nudged) is expected


def test_runs_without_a_common_step_are_not_judged() -> None:
    assert judge(Run(name="a", path="a"), REFERENCE, ("loss",), BOUNDS["no"], []) is None
