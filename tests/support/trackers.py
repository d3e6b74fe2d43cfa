"""Nobody is logged in; what a run of W&B holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launchers import BIN


def quiet(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment in which nobody has logged in anywhere."""
    return {
        "HOME": str(tmp_path),
        "NETRC": str(tmp_path / "netrc"),
        "WANDB_CONFIG_DIR": str(tmp_path),
        **more,
    }


def inspect(*words: str) -> str:
    done = subprocess.run(
        [BIN / "wandb", "leet", "inspect", *words], capture_output=True, text=True, check=True
    )
    return done.stdout
