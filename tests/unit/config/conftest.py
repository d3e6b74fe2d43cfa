"""An empty current folder for configs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that messages show short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
