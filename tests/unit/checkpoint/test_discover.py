"""What a folder of checkpoints holds: damage is found and named, whatever the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from written_checkpoints import loaded, save

from trainer.checkpoint import discover, store

FILES = [
    store.MANIFEST,
    store.STATE,
    "rank-00000.safetensors",
    "rank-00001.safetensors",
    "extras/config.json",
]


def delete(path: Path, other: Path) -> None:
    path.unlink()


def cut_at(share: float) -> Callable[[Path, Path], None]:
    def cut(path: Path, other: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    cut.__name__ = f"cut_at_{share:.0%}"
    return cut


def flip(at: float) -> Callable[[Path, Path], None]:
    def flipped(path: Path, other: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    flipped.__name__ = f"flip_at_{at:.0%}"
    return flipped


def swap(path: Path, other: Path) -> None:
    shutil.copy(other, path)


DAMAGES = [delete, *map(cut_at, (0.1, 0.5, 0.99)), *map(flip, (0, 0.3, 0.6, 1)), swap]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_and_named(
    name: str, damage: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    for step in (7, 8):
        save(tmp_path, step)
    good, bad = (tmp_path / store.name_of(step) for step in (7, 8))
    damage(bad / name, good / name)
    found = discover.verify(discover.inspect(bad))
    assert name in found.problem
    assert loaded(good) is not None
