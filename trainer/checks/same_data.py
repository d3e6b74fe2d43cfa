"""Ranks that have other data: an order taken from a set, rows divided by rank, no seed."""

from __future__ import annotations

from ..data.alike import check_same_beginning
from ..data.batches import Window
from ..hooks import Callback, Unfinished
from ..run import Run


class SameData(Callback):
    """Compares samples of data sets, and the beginning of streams, between ranks."""

    def __init__(self) -> None:
        self._compared = False

    def on_data(self, run: Unfinished) -> None:
        """Raise ``DataError`` where a rank has another data set. Collective."""
        run.sampled.check_same_on_all_ranks()

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``DataError`` where a rank has read another stream. Collective, once."""
        if not self._compared and window.digest:
            digests = run.agreement.gather(window.digest)
            check_same_beginning(digests, "Data.train")
        self._compared = True
