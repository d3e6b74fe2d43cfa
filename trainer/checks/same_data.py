"""Ranks that have other data: an order taken from a set, rows divided by rank, no seed."""

from __future__ import annotations

from ..data.alike import check_same_beginning, check_same_data
from ..data.batches import Window
from ..hooks import Callback
from ..run import Read, Run


class SameData(Callback):
    """Compares samples of data sets, and the beginning of streams, between ranks."""

    _compared = False

    def on_data(self, run: Read) -> None:
        """Raise ``DataError`` if a rank has another data set. Collective."""
        check_same_data(run.sets.sampled.facts, run.agreement.gather)

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``DataError`` if a rank has read another stream. Collective, once."""
        if not self._compared and window.digest:
            check_same_beginning(window.digest, "Data.train", run.agreement.gather)
        self._compared = True
