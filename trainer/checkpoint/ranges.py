"""Flat ranges of named tensors, by which any layout reads the checkpoints of any other layout.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy.
``Ranges`` reads "elements a to b of this tensor" from files, whichever ranks wrote them in
whichever pieces: our checkpoints, and any folder of safetensors files (an exported model, or a
model of the Hugging Face hub). So resuming, resharding and loading pretrained weights are the same
code, and no rank ever holds a whole model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
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
    """A contiguous part of a tensor, stored in a file.

    Args:
        start: the piece's first element within the flattened tensor.
        path: of the file.
        entry: dtype, shape and place in the file.
    """

    start: int
    path: Path
    entry: Entry

    @property
    def end(self) -> int:
        return self.start + self.entry.numel


class Ranges:
    """Tensors in files, read by range: the pieces of each (kind, name), given in any order."""

    def __init__(self, pieces: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for kind, name, piece in pieces:
            self._pieces.setdefault((kind, name), []).append(piece)
        for (kind, name), same in self._pieces.items():
            same.sort(key=attrgetter("start"))
            if len({piece.entry.dtype for piece in same}) > 1:
                raise CheckpointError(f"{kind} {name}: is stored in several dtypes")

    def names(self, kind: str) -> list[str]:
        """Return the names of the tensors of a kind."""
        return [name for other, name in self._pieces if other == kind]

    def holds(self, kind: str, name: str) -> bool:
        """Return whether there is a piece of a tensor."""
        return (kind, name) in self._pieces

    def check_whole(self, kind: str, name: str, numel: int) -> None:
        """Check that the pieces of a tensor hold each of ``numel`` elements once.

        Raises:
            CheckpointError: an element is in no file, or in two pieces.
        """
        end = self._end(kind, name)
        if end > numel:
            raise CheckpointError(f"{kind} {name}: {end} elements are stored instead of {numel}")
        for _ in self._pieces_of(kind, name, 0, numel):
            pass

    def _end(self, kind: str, name: str) -> int:
        """Return the end of the last piece of a tensor. 0 without a piece."""
        return max((piece.end for piece in self._pieces.get((kind, name), ())), default=0)

    def _pieces_of(
        self, kind: str, name: str, start: int, end: int
    ) -> Iterator[tuple[Piece, int, int]]:
        """Yield ``(piece, low, high)``: the pieces that hold elements ``start`` to ``end``.

        Raises:
            CheckpointError: an element is in no file, or in two pieces.
        """
        covered = start  # all elements before this number are in a piece
        for piece in self._pieces.get((kind, name), ()):
            low, high = max(piece.start, start), min(piece.end, end)
            if low >= high:
                continue
            if low < covered:
                raise CheckpointError(f"{kind} {name}: elements from {low} on are stored twice")
            if low > covered:
                end = low
                break
            yield piece, low, high
            covered = high

        if covered < end:
            raise CheckpointError(f"{kind} {name}: elements {covered} to {end} are in no file")

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, out: Tensor) -> None:
        """Fill ``out`` with the elements of a tensor from ``start`` on.

        Some elements are read at a time, so that no second copy of a tensor is in memory.

        Args:
            out: 1-D, on any device, of any dtype.

        Raises:
            CheckpointError: an element is in no file, or in two pieces.
        """
        for piece, low, high in self._pieces_of(kind, name, start, start + out.numel()):
            dtype = piece.entry.dtype
            at_a_time = CHUNK // dtype.itemsize
            for first in range(low, high, at_a_time):
                last = min(high, first + at_a_time)
                size = (last - first) * dtype.itemsize
                place = piece.entry.begin + (first - piece.start) * dtype.itemsize
                stored = np.fromfile(piece.path, np.uint8, count=size, offset=place)
                # Sent first: torch would cast on the host, and send more bytes to the device.
                sent = torch.from_numpy(stored).view(dtype).to(out.device)
                out[first - start : last - start].copy_(sent)

    def whole(self, kind: str, name: str) -> Tensor:
        """Read a whole tensor, flat, to the CPU.

        Raises:
            CheckpointError: an element is in no file, or in two pieces.
        """
        if not self.holds(kind, name):
            raise CheckpointError(f"{kind} {name}: is in no file")
        numel = self._end(kind, name)
        self.check_whole(kind, name, numel)  # before the memory for it is allocated
        out = torch.empty(numel, dtype=self._pieces[kind, name][0].entry.dtype)
        self.read(kind, name, 0, out)
        return out

    def value(self, kind: str, name: str) -> Tensor:
        """Read the only value that is stored of a parameter (Adam's step), as a scalar tensor.

        Raises:
            CheckpointError: the files hold more values, or none.
        """
        whole = self.whole(kind, name)
        if whole.numel() != 1:
            raise CheckpointError(f"{kind} {name}: holds {whole.numel()} values instead of 1")
        return whole[0]


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the tensors of a checkpoint. Only the headers are read.

    Raises:
        CheckpointError: a file cannot be read, or holds a name that is no ``kind/name/start``.
    """
    pieces = []
    for path in paths:
        for text, entry in read_header(path).items():
            key = _KEY.fullmatch(text)
            if key is None:
                raise CheckpointError(f"{path}: {text!r} is no range called kind/name/start")
            kind, name, start = key.groups()
            pieces.append((kind, name, Piece(int(start), path, entry)))
    return Ranges(pieces)


def of_model_folder(
    folder: Path, names: Mapping[str, str] | None = None
) -> tuple[Ranges, dict[str, Entry]]:
    """Open a folder of whole tensors: an exported model, or a model of the Hugging Face hub.

    Args:
        names: the name of a tensor in the model, by the name in the files. By default the same.

    Returns, raises:
        As ``of_pretrained``.
    """
    return of_pretrained([Pretrained(folder=folder, names=names or {})])


def of_pretrained(sources: Iterable[Pretrained]) -> tuple[Ranges, dict[str, Entry]]:
    """Open the folders of a pretrained model, or of its parts.

    Returns:
        The tensors, all of the kind ``parameter``, and the entry of each in its file.

    Raises:
        CheckpointError: a folder has no safetensors file, or two files hold a tensor of the same
            name.
    """
    pieces: dict[str, Piece] = {}
    for source in sources:
        folder = Path(source.folder)
        paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
        if not paths:
            raise CheckpointError(f"{folder}: holds no .safetensors file")

        for path in paths:
            for name_in_file, entry in read_header(path).items():
                name = source.in_model(source.names.get(name_in_file, name_in_file))
                if name in pieces:
                    raise CheckpointError(
                        f"{folder}: {name} is in {pieces[name].path.name} and in {path.name}; "
                        "remove one of the two"
                    )
                pieces[name] = Piece(0, path, entry)

    ranges = Ranges(("parameter", name, piece) for name, piece in pieces.items())
    return ranges, {name: piece.entry for name, piece in pieces.items()}
