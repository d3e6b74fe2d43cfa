"""Data preparation that fails leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer import prepared


def test_an_error_leaves_nothing_and_other_content_is_another_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        prepared(tmp_path, 1, lambda folder: 1 / 0)
    first = prepared(tmp_path, 1, lambda folder: (folder / "x").touch())
    second = prepared(tmp_path, 2, lambda folder: (folder / "y").touch())
    assert (os.listdir(first), os.listdir(second)) == (["x"], ["y"])
    assert prepared(tmp_path, 1, lambda folder: 1 / 0) == first
