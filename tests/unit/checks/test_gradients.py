"""Gradients that were not averaged over the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run
from torch import nn

from trainer import LaunchError
from trainer.checks.gradients import ExchangedGradients


def run_with(reasons: list[str]) -> Any:
    """Return a run whose strategy gives one of these reasons each time that it is asked."""
    model = nn.Linear(2, 1)
    strategy = SimpleNamespace(
        missed_exchange=lambda: reasons.pop(0), trainable=list(model.parameters())
    )
    return fake_run(strategy=strategy, model=model)


def test_gradients_that_went_past_the_exchange_end_the_run_before_they_are_applied() -> None:
    run = run_with(["the loss does not depend on head.weight"])
    with pytest.raises(LaunchError, match=r"^the loss does not depend on head\.weight$"):
        ExchangedGradients().before_update(run)


def test_each_step_is_looked_at() -> None:
    reasons = ["", "", "later"]
    check, run = ExchangedGradients(), run_with(reasons)
    check.before_update(run)
    check.before_update(run)
    with pytest.raises(LaunchError, match="later"):
        check.before_update(run)


def test_a_layer_that_was_frozen_meanwhile_is_named_instead() -> None:
    run = run_with(["the loss does not depend on weight"])
    run.model.weight.requires_grad_(False)
    with pytest.raises(LaunchError, match=r"^weight: frozen, thawed or replaced"):
        ExchangedGradients().before_update(run)
