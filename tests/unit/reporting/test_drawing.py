"""Drawings are PNG files that others read, with and without Pillow."""

from __future__ import annotations

import builtins
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainer.reporting.drawing import bars, grid, heat_map, png


def test_a_png_file_is_read_back_by_pillow() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (np.array(Image.open(io.BytesIO(png(pixels)))) == pixels).all()


def test_a_grid_has_every_image_in_its_place() -> None:
    images = [np.full((100, 120, 3), 10 * number, dtype=np.uint8) for number in range(5)]
    picture = grid(images)
    assert picture.shape == (2 * 102, 3 * 122, 3)
    shades = [int(picture[50 + 102 * (at // 3), 60 + 122 * (at % 3), 0]) for at in range(6)]
    assert shades == [0, 10, 20, 30, 40, 255]


def test_images_of_different_sizes_share_a_grid_of_bounded_size() -> None:
    small, large = np.zeros((8, 8, 3), dtype=np.uint8), np.zeros((1000, 30, 3), dtype=np.uint8)
    assert max(grid([large] * 64).shape) <= 2200
    assert grid([small, large]).shape == (1002, 2 * 32, 3)
    assert grid([small]).shape == (98, 98, 3), "eight pixels cannot be seen: enlarged"


@pytest.fixture(params=["with Pillow", "without"])
def pillow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    if request.param == "without":
        monkeypatch.setattr(builtins, "__import__", without)
    return bool(request.param == "with Pillow")


def test_the_larger_a_count_the_higher_its_bar(pillow: bool) -> None:
    picture = bars(np.array([1, 0, 4]), np.array([0.0, 1.0, 2.0, 3.0]))
    dark = (picture[:200, :, 0] == 31).sum(axis=0)
    assert [int(dark[at * 8]) for at in range(3)] == [50, 0, 200]
    assert ((picture[201:] < 255).any()) == pillow, "the ends of the axis"


@pytest.mark.parametrize("size", [1, 3, 24, 25, 1000])
def test_a_matrix_is_the_darker_the_larger_the_part_of_its_row(size: int, pillow: bool) -> None:
    counts = np.eye(size)
    counts[0, 0] = 0
    picture = heat_map(counts, [f"läßt 図 {number}" for number in range(size)])
    assert max(picture.shape) <= 64 + 24 * 44
    assert picture[1, -1].min() == 255 or size == 1
    if size > 1:
        assert picture[-1, -1].tolist() == [31, 78, 121], "the last class was always right"
