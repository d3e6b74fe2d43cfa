"""Importing large packages without Python's garbage collector.

It would look again and again at all that torch and accelerate make when they are imported, which
stays to the end: a seventh of the time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside; what was made there counts as old afterwards, and is not looked at
    soon.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # the two together move everything to the oldest generation
        gc.set_threshold(*thresholds)
