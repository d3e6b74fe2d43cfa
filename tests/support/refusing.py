"""Runs that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit
from resuming import Odd

from trainer import Callback, CheckpointError, LaunchError


def refused(folder: Path, match: str, task: Odd, *callbacks: Callback, **settings: Any) -> str:
    with pytest.raises((CheckpointError, LaunchError), match=match) as caught:
        fit(folder, task, *callbacks, **settings)
    assert not (folder / "metrics.jsonl").exists(), "before the first step"
    return str(caught.value)
