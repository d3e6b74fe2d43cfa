"""Gradients that were not averaged over the ranks."""

from __future__ import annotations

from ..errors import LaunchError
from ..hooks import Callback
from ..run import Run
from .parameters import refuse_changed


class ExchangedGradients(Callback):
    """Looks, at each step, whether the gradients were averaged."""

    def before_update(self, run: Run) -> None:
        """Raise ``LaunchError`` if the loss went past the exchange of gradients."""
        reason = run.strategy.missed_exchange()
        if not reason:
            return

        # Layers that were frozen since training began would have the same effect.
        refuse_changed(run)
        raise LaunchError(reason)
