"""Flat ranges of named tensors, by which any layout reads the checkpoints of any other layout.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy.
``Ranges`` reads ranges from files, whichever ranks wrote them: our checkpoints, and any folder of
safetensors files. So resuming, resharding and loading pretrained weights are the same code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..task import Pretrained
from .safetensors_io import Entry, read_header

CHUNK = 1 << 24  # bytes that are read at a time
_KEY = re.compile(r"([^/]+)/(.+)/([0-9]{1,18})", re.DOTALL)


class Piece(NamedTuple):
    """A contiguous part of a tensor, stored in a file. ``start`` is as in ``Key``."""

    start: int
    path: Path
    entry: Entry

    @property
    def end(self) -> int:
        return self.start + self.entry.numel


class Ranges:
    """Tensors in files, read by range: the pieces of each (kind, name) without gaps or overlaps."""

    def __init__(self, pieces: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for kind, name, piece in sorted(pieces, key=lambda found: found[2].start):
            if piece.start != self.numel(kind, name):
                raise CheckpointError(
                    f"{piece.path}: {kind} {name}: elements are in no file or stored twice"
                )
            self._pieces.setdefault((kind, name), []).append(piece)

    def names(self, kind: str) -> list[str]:
        """Return the names of the tensors of a kind."""
        return [name for other, name in self._pieces if other == kind]

    def holds(self, kind: str, name: str) -> bool:
        """Return whether there is a piece of a tensor."""
        return (kind, name) in self._pieces

    def numel(self, kind: str, name: str) -> int:
        """Return how many elements of a tensor the files hold."""
        return self._pieces[kind, name][-1].end if self.holds(kind, name) else 0

    def check_whole(self, kind: str, name: str, numel: int) -> None:
        """Raise ``CheckpointError`` if the files hold fewer or more elements of a tensor."""
        stored = self.numel(kind, name)
        if stored != numel:
            raise CheckpointError(f"{kind} {name}: {stored} elements are stored instead of {numel}")

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, out: Tensor) -> None:
        """Fill ``out`` (1-D, any device and dtype) with the elements of a tensor from ``start`` on.

        Some elements are read at a time, so that no second copy of a tensor is in memory.
        """
        end = start + out.numel()
        if end > self.numel(kind, name):
            raise CheckpointError(f"{kind} {name}: elements up to {end} are in no file")
        for piece in self._pieces.get((kind, name), ()):
            first, last = max(piece.start, start), min(piece.end, end)
            if first < last:
                dtype = piece.entry.dtype
                place = piece.entry.begin + (first - piece.start) * dtype.itemsize
                for part in torch.split(out[first - start : last - start], CHUNK // dtype.itemsize):
                    size = part.numel() * dtype.itemsize
                    stored = np.fromfile(piece.path, np.uint8, count=size, offset=place)
                    # Sent first: torch would cast on the host, and send more bytes to the device.
                    part.copy_(torch.from_numpy(stored).view(dtype).to(out.device))
                    place += size

    def whole(self, kind: str, name: str) -> Tensor:
        """Read a whole tensor, flat, to the CPU."""
        out = torch.empty(self.numel(kind, name), dtype=self._pieces[kind, name][0].entry.dtype)
        self.read(kind, name, 0, out)
        return out


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the tensors of a checkpoint. Only the headers are read."""
    pieces = []
    for path in paths:
        for text, entry in read_header(path).items():
            key = _KEY.fullmatch(text)
            if key is None:
                raise CheckpointError(f"{path}: {text!r} is no range called kind/name/start")
            pieces.append((key[1], key[2], Piece(int(key[3]), path, entry)))
    return Ranges(pieces)


def of_model_folder(folder: Path) -> tuple[Ranges, dict[str, Entry]]:
    """Open a single folder, as ``of_pretrained`` does."""
    return of_pretrained([Pretrained(folder=folder)])


def of_pretrained(sources: Iterable[Pretrained]) -> tuple[Ranges, dict[str, Entry]]:
    """Open the folders of a pretrained model. Return tensors, and the entry of each in its file."""
    pieces = []
    for source in sources:
        folder = Path(source.folder)
        paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
        if not paths:
            raise CheckpointError(f"{folder}: holds no .safetensors file")

        for path in paths:
            for name_in_file, entry in read_header(path).items():
                if name_in_file not in source.left_out:
                    name = source.in_model(source.names.get(name_in_file, name_in_file))
                    pieces.append(("parameter", name, Piece(0, path, entry)))
    return Ranges(pieces), {name: piece.entry for _, name, piece in pieces}
