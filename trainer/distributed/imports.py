"""Importing large packages without Python's garbage collector.

It would go again and again through all objects that importing torch and accelerate makes, which
stay to the end: a seventh of the import time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the block. Its objects count as old afterwards."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # the two together move everything to the oldest generation
        gc.set_threshold(*thresholds)
