"""Gradients that were not averaged over the ranks."""

from __future__ import annotations

from ..errors import LaunchError
from ..hooks import Callback
from ..run import Run


class ExchangedGradients(Callback):
    """Looks whether the first step's gradients were averaged: later ones are made the same way."""

    def __init__(self) -> None:
        self._looked = False

    def before_update(self, run: Run) -> None:
        """Raise ``LaunchError`` where the loss went past the exchange of gradients."""
        if self._looked:
            return
        self._looked = True

        reason = run.strategy.missed_exchange()
        if reason:
            raise LaunchError(
                f"{reason}, so no gradient was averaged over the ranks: begin with model(...); "
                "a method of it, or its .module, goes past the exchange"
            )
