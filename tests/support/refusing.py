"""Runs that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit
from resuming import Odd

from trainer import Callback, CheckpointError, LaunchError


def refused(folder: Path, match: str, task: Odd, *callbacks: Callback, **settings: Any) -> None:
    with pytest.raises((CheckpointError, LaunchError), match=match):
        fit(folder, task, *callbacks, **settings)
    assert not (folder / "metrics.jsonl").exists(), "before the first step"
