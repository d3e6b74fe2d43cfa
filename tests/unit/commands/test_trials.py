"""Trials: the error in a log."""

from __future__ import annotations

from trainer.commands.trials import last_error


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
    thrown = "Traceback (most recent call last):\n  x\n  ValueError: no\n"
    assert last_error(f"{report}\n  traceback : {thrown}\n====\n") == "ValueError: no"
    assert last_error(f"rank 1: {thrown}") == "ValueError: no"
