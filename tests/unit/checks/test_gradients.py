"""Gradients that were not averaged over the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run

from trainer import LaunchError
from trainer.checks.gradients import ExchangedGradients


def run_with(reasons: list[str]) -> Any:
    """Return a run whose strategy gives one of these reasons each time that it is asked."""
    return fake_run(strategy=SimpleNamespace(missed_exchange=lambda: reasons.pop(0)))


def test_gradients_that_went_past_the_exchange_end_the_run_before_they_are_applied() -> None:
    run = run_with(["the loss does not depend on what model(...) returned"])
    with pytest.raises(LaunchError) as error:
        ExchangedGradients().before_update(run)
    line = str(error.value)
    assert line.startswith("the loss does not depend on what model(...) returned, so no gradient")
    assert "begin with model(...)" in line


def test_the_first_step_alone_is_looked_at() -> None:
    reasons = ["", "later"]
    check, run = ExchangedGradients(), run_with(reasons)
    check.before_update(run)
    check.before_update(run)
    assert reasons == ["later"]
