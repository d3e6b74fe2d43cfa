"""Trackers whose server is gone in the middle of a run: training goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_SHARE = 20  # of the time a tracker that fails may cost one part in so many


class Patience:
    """Calls trackers; one that fails is let alone for a while, and what it misses is in
    metrics.jsonl.

    Their clients try for minutes before they say that a server is gone, so what fails is tried
    again only after twenty times as long as that took, and never within a minute.

    Args:
        say: tells the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._again: dict[str, float] = {}

    def call(
        self, tracker: Any, work: Callable[[], object], what: str, *, again: bool = True
    ) -> None:
        """Do ``work``, which gives ``what`` to a tracker; ``again`` says that there will be more of
        it.
        """
        began = time.monotonic()
        if began < self._again.get(tracker.name, began):
            return
        try:
            work()
        except Exception as error:
            wait = max(60.0, _SHARE * (time.monotonic() - began))
            self._again[tracker.name] = time.monotonic() + wait
            reason = (str(error).splitlines() or [""])[0][:160]
            later = f"; training goes on, and tries again in {wait:.0f} s" if again else ""
            self._say(
                f"{tracker.name}: did not take {what} ({type(error).__name__}: {reason}); "
                f"metrics.jsonl has every value{later}"
            )
