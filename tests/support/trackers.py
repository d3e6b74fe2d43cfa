"""Trackers in tests: an environment without logins, and W&B's own reader of its files."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launchers import BIN


def quiet(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return an environment in which nobody has logged in anywhere."""
    return {
        "HOME": str(tmp_path),
        "NETRC": str(tmp_path / "netrc"),
        "WANDB_CONFIG_DIR": str(tmp_path),
        **more,
    }


def inspect(*words: str) -> str:
    """Return what ``wandb leet inspect`` prints of a run's folder."""
    command = [BIN / "wandb", "leet", "inspect", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout
