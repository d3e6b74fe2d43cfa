"""An empty current folder to write launch files into."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_texts import Write


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into an empty current folder; messages then hold its bare name."""
    monkeypatch.chdir(tmp_path)

    def to_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return name

    return to_file
