"""Corpora of numbered words, and the environment in which the examples can be imported."""

from __future__ import annotations

import os
from pathlib import Path

from launchers import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'examples'}{os.pathsep}{ROOT}"}


def words(path: Path, count: int, first: int = 0) -> Path:
    """A text of numbered words, so that each stands in it once."""
    path.write_text(" ".join(f"word{number}" for number in range(first, first + count)))
    return path
