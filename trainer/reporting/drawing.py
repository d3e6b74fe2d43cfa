"""Small drawings as arrays of pixels, and PNG files, with numpy and zlib alone.

Where Pillow is installed, the cells of a small confusion matrix have their numbers and names.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_SIDE = 2048  # of a grid of images
_INK = np.array([31, 78, 121], dtype=np.float64)
_MARGIN = 64  # for the names of classes
_MOST_NAMED = 24  # classes whose names and numbers fit


def png(pixels: Pixels) -> bytes:
    """Return a PNG file of RGB pixels, of shape (height, width, 3)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row begins with its filter: 0
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(rows.tobytes(), 6)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", content), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def padded(images: Sequence[Pixels]) -> list[Pixels]:
    """Return images of one size: smaller ones with a white border to the right and below."""
    height = max(image.shape[0] for image in images)
    width = max(image.shape[1] for image in images)

    same = []
    for image in images:
        canvas = np.full((height, width, 3), 255, dtype=np.uint8)
        canvas[: image.shape[0], : image.shape[1]] = image
        same.append(canvas)
    return same


def grid(images: Sequence[Pixels]) -> Pixels:
    """Return one picture of some images, row by row; small images are enlarged."""
    tiles = padded(images)
    count = math.ceil(math.sqrt(len(tiles)))
    longest = max(tiles[0].shape[:2])

    # Images of 8 x 8 pixels cannot be seen, and 64 of 1024 x 1024 are too much of one file.
    stride = math.ceil(count * longest / _SIDE)
    factor = max(1, 96 // longest)
    row_count = math.ceil(len(tiles) / count)
    tiles = [_enlarged(tile, factor)[::stride, ::stride] for tile in tiles]

    height, width = tiles[0].shape[:2]
    canvas = np.full((row_count * (height + 2), count * (width + 2), 3), 255, dtype=np.uint8)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, count)
        top, left = row * (height + 2), column * (width + 2)
        canvas[top : top + height, left : left + width] = tile
    return canvas


def _enlarged(pixels: Pixels, factor: int) -> Pixels:
    """Return a picture of which each pixel is a square of so many."""
    rows = np.repeat(pixels, factor, axis=0)
    return np.repeat(rows, factor, axis=1)


def bars(counts: NDArray[np.int64], edges: NDArray[np.float64]) -> Pixels:
    """Return a histogram as bars, with the ends of its axis where Pillow is installed."""
    height, width = 200, 8
    canvas = np.full((height + 20, width * len(counts), 3), 255, dtype=np.uint8)
    highest = max(1, int(counts.max()))
    for number, count in enumerate(counts):
        top = height - round(height * int(count) / highest)
        canvas[top:height, number * width : (number + 1) * width - 1] = _INK.astype(np.uint8)
    canvas[height] = 0

    labels = [(2, height + 4, f"{edges[0]:.4g}")]
    last = f"{edges[-1]:.4g}"
    labels.append((canvas.shape[1] - 6 * len(last) - 4, height + 4, last))
    return _written(canvas, [(*label, (0, 0, 0)) for label in labels])


def heat_map(counts: NDArray[np.float64], names: Sequence[str]) -> Pixels:
    """Return a confusion matrix as cells: the darker, the larger a part of its row they are."""
    size = len(counts)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0).clip(0, 1)
    colours = (255 - shares[..., None] * (255 - _INK)).astype(np.uint8)

    has_text = size <= _MOST_NAMED
    cell = 44 if has_text else max(1, 1000 // size)
    cells = _enlarged(colours, cell)
    if not has_text:
        return cells

    cells[::cell] = cells[:, ::cell] = 224
    canvas = np.full((_MARGIN // 2 + size * cell, _MARGIN + size * cell, 3), 255, dtype=np.uint8)
    canvas[_MARGIN // 2 :, _MARGIN:] = cells

    labels = []
    for row, name in enumerate(names):
        middle = row * cell + cell // 2
        labels.append((4, _MARGIN // 2 + middle - 6, name[:9], (0, 0, 0)))
        labels.append((_MARGIN + row * cell + 2, _MARGIN // 2 - 14, name[:6], (0, 0, 0)))
        for column, share in enumerate(shares[row]):
            ink = (255, 255, 255) if share > 0.5 else (0, 0, 0)
            left = _MARGIN + column * cell + 4
            labels.append((left, _MARGIN // 2 + middle - 6, f"{counts[row, column]:.5g}", ink))
    return _written(canvas, labels)


def _written(
    canvas: Pixels, labels: Sequence[tuple[int, int, str, tuple[int, int, int]]]
) -> Pixels:
    """Write texts at (x, y) onto a picture, where Pillow is installed."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return canvas

    image = Image.fromarray(canvas)
    draw: Any = ImageDraw.Draw(image)
    for left, top, text, ink in labels:
        # Pillow's own font without FreeType knows Latin letters alone.
        draw.text((left, top), text.encode("latin-1", "replace").decode("latin-1"), fill=ink)
    return np.array(image)
