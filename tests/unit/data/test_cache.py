"""Data preparation that fails leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer import prepare_once


def test_an_error_leaves_nothing_and_other_content_is_another_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        prepare_once(tmp_path, 1, lambda folder: 1 / 0)
    first = prepare_once(tmp_path, 1, lambda folder: (folder / "x").touch())
    second = prepare_once(tmp_path, 2, lambda folder: (folder / "y").touch())
    assert (os.listdir(first), os.listdir(second)) == (["x"], ["y"])
    assert prepare_once(tmp_path, 1, lambda folder: 1 / 0) == first
