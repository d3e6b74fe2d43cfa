"""The private attributes of Python's standard library that this package depends on.

Last seen in Python 3.11. ``tests/unit/private/test_python.py`` names the one that is gone.
``os._exit`` and ``sys._current_frames`` are public in spite of their names: they are documented.
"""

from __future__ import annotations

import argparse
import multiprocessing.process


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser (``_actions``): argparse has no public list of them."""
    return list(parser._actions)


def child_processes() -> list[multiprocessing.process.BaseProcess]:
    """Return the processes that multiprocessing has started here, loader processes among them.

    ``multiprocessing.process._children``. The public ``active_children`` also takes note of those
    that have ended, which is for the main thread to do, and the watch asks from another one.
    """
    return list(multiprocessing.process._children)  # type: ignore[attr-defined]
