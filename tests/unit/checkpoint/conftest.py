"""A stranger's checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forging import Noted
from one_process import checkpoint, fit


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    fit(folder / "run", Noted(), max_steps=2, ema_decay=0.9)
    return checkpoint(folder / "run", 2)


@pytest.fixture
def place(honest: Path, tmp_path: Path) -> Path:
    """A stranger's checkpoint beside a file that is not his."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("private")
    shutil.copytree(honest, tmp_path / "theirs" / honest.name)
    return tmp_path
