"""Flat ranges of named tensors: what checkpoints are made of, and how any layout reads any other.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy. A store
answers "the range [a, b) of this tensor", whoever wrote it in whichever pieces: our checkpoints and any
folder of safetensors files (an exported model, one of the Hugging Face hub) are such stores. So resuming,
resharding and loading pretrained weights are the same code, and no rank ever holds a whole model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..strategies.tensor_parallel import Columns
from .disk import CHUNK, FileFact, write_file
from .safetensors_io import Entry, header, raw, read_header

_KEY = re.compile(r"([^/]+)/(.+)/([0-9]{1,18})(?:\+([0-9]{1,18}))?", re.DOTALL)


class Key(NamedTuple):
    """The name of a piece in a rank's file, ``kind/name/start``: its first element within the flattened tensor.

    ``kind/name/start+stride`` is one of some columns: each row of it begins ``stride`` elements after the one before.
    """

    kind: str
    name: str
    start: int = 0
    stride: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.start}" + f"+{self.stride}" * bool(self.stride)


class Piece(NamedTuple):
    """One part of a tensor, in a file: a range, or some columns."""

    path: Path
    start: int
    entry: Entry
    columns: Columns | None = None

    @property
    def end(self) -> int:
        return self.start + (self.columns.span(self.entry.numel) if self.columns else self.entry.numel)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield first and last element (exclusive) of each range that it is made of."""
        if self.entry.numel:
            width, stride = self.columns or (self.entry.numel, self.entry.numel)
            yield from ((at, at + width) for at in range(self.start, self.end, stride))


class Ranges:
    """A store: pieces of tensors by (kind, name), given in any order."""

    def __init__(self, found: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for kind, name, piece in found:
            self._pieces.setdefault((kind, name), []).append(piece)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.start)
        self._kinds: dict[str, list[str]] = {}
        for kind, name in self._pieces:
            self._kinds.setdefault(name, []).append(kind)

    def kinds(self, name: str) -> list[str]:
        """List what is kept of a tensor: ``parameter``, ``optimizer.step``, ..."""
        return self._kinds.get(name, [])

    def names(self, kind: str) -> list[str]:
        """List the tensors of which this is kept."""
        return [name for other, name in self._pieces if other == kind]

    def holds(self, kind: str, name: str) -> bool:
        """Tell whether there is a piece of a tensor."""
        return (kind, name) in self._pieces

    def dtype(self, kind: str, name: str) -> torch.dtype:
        """Return the dtype of a tensor that is kept."""
        return self._pieces[kind, name][0].entry.dtype

    def size(self, kind: str, name: str) -> int:
        """Count the elements of a tensor that is kept whole."""
        return self._pieces[kind, name][-1].end

    def check_whole(self, kind: str, name: str, numel: int) -> None:
        """Hold the pieces of a tensor of ``numel`` elements to give each once; else ``CheckpointError``."""
        at = 0
        for start, end in sorted(found for piece in self._pieces.get((kind, name), []) for found in piece.ranges()):
            if start > at:
                raise CheckpointError(f"{kind} {name}: elements {at} to {start} are in no file")
            if start < at:
                raise CheckpointError(f"{kind} {name}: elements from {start} on stand there twice")
            at = end
        if at > numel:
            raise CheckpointError(f"{kind} {name}: {at} elements stand there instead of {numel}")
        if at < numel:
            raise CheckpointError(f"{kind} {name}: elements {at} to {numel} are in no file")

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, out: Tensor, columns: Columns | None = None) -> None:
        """Fill ``out`` (1-D, on any device, of any dtype) with the elements from ``start`` on, of some columns only.

        Raises:
            CheckpointError: some of the range is in no file, or a file is cut.
        """
        if columns is not None and out.numel():
            # Files hold whole rows mostly: rows are read by chunks, and what lies in between is dropped.
            rows = max(1, CHUNK // (columns.stride * out.itemsize)) * columns.width
            for low in range(0, out.numel(), rows):
                part = out[low : low + rows]
                whole = torch.empty(columns.span(part.numel()), dtype=out.dtype)
                self.read(kind, name, start + columns.at(low), whole)
                part.copy_(columns.within(whole, part.numel()).reshape(-1))
            return
        pieces = self._pieces.get((kind, name), [])
        at, end = start, start + out.numel()
        at += sum(_fill_columns(piece, piece.columns, start, out) for piece in pieces if piece.columns)
        for piece in pieces:
            if at < end and piece.start <= at < piece.end and not piece.columns:
                stop = min(end, piece.end)
                _fill(piece, at - piece.start, out[at - start : stop - start])
                at = stop
        if at < end:
            raise CheckpointError(f"{kind} {name}: elements {at} to {end} are in no file")

    def whole(self, kind: str, name: str) -> Tensor:
        """Read one whole tensor, flat, to the CPU; ``CheckpointError`` where a part of it is in no file."""
        pieces = self._pieces.get((kind, name))
        if pieces is None:
            raise CheckpointError(f"{kind} {name}: is in no file")
        out = torch.empty(max(piece.end for piece in pieces), dtype=pieces[0].entry.dtype)
        self.read(kind, name, 0, out)
        return out

    def value(self, kind: str, name: str) -> Tensor:
        """Read the one value that is kept of a parameter (Adam's step); ``CheckpointError`` where there are more."""
        whole = self.whole(kind, name)
        if whole.numel() != 1:
            raise CheckpointError(f"{kind} {name}: holds {whole.numel()} values instead of one")
        return whole[0].clone()


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the store of one of our checkpoints; ``CheckpointError`` where a file holds what no checkpoint does."""
    found = []
    for path in paths:
        for text, entry in read_header(path).items():
            key = _KEY.fullmatch(text)
            stride = int(key[4] or 0) if key else 0
            if key is None or len(entry.shape) > 1 + bool(stride) or (stride and not _are_columns(entry.shape, stride)):
                raise CheckpointError(f"{path}: {text!r} of shape {entry.shape} is no range called kind/name/start")
            columns = Columns(entry.shape[1], stride) if stride else None
            found.append((key[1], key[2], Piece(path, int(key[3]), entry, columns)))
    return Ranges(found)


def of_model_folder(folder: Path, names: Mapping[str, str] | None = None) -> tuple[Ranges, dict[str, tuple[int, ...]]]:
    """Open a folder of whole tensors: an exported model, or one of the Hugging Face hub. Return store and shapes.

    Args:
        names: what tensors are called in the model, by their names in the files; the others are called the same.

    Raises:
        CheckpointError: there is no safetensors file, or two of them hold a tensor of one name.
    """
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not paths:
        raise CheckpointError(f"{folder}: holds no .safetensors file")
    found: dict[str, Piece] = {}
    for path in paths:
        for written, entry in read_header(path).items():
            name = (names or {}).get(written, written)
            if name in found:
                both = f"{found[name].path.name} and {path.name}"
                raise CheckpointError(f"{folder}: {name} stands in {both}; leave one of them in the folder")
            found[name] = Piece(path, 0, entry)
    shapes = {name: piece.entry.shape for name, piece in found.items()}
    return Ranges(("parameter", name, piece) for name, piece in found.items()), shapes


def _are_columns(shape: tuple[int, ...], stride: int) -> bool:
    return len(shape) == 2 and shape[0] > 0 and 0 < shape[1] <= stride


def _fill_columns(piece: Piece, columns: Columns, start: int, out: Tensor) -> int:
    """Read what a piece of columns has of the elements from ``start`` on; return how many it has."""
    width, stride = columns
    first, last = max(0, (start - piece.start) // stride), -(-(start + out.numel() - piece.start) // stride)
    last, step, count = min(piece.entry.shape[0], last), max(1, CHUNK // (8 * width)), 0
    for row in range(first, last, step):
        rows = torch.arange(row, min(last, row + step))
        values = torch.empty(len(rows), width, dtype=piece.entry.dtype)
        _fill(piece, row * width, values.view(-1))
        places = (rows * stride + (piece.start - start))[:, None] + torch.arange(width)
        inside = (places >= 0) & (places < out.numel())
        out[places[inside].to(out.device)] = values[inside].to(out.device, out.dtype)
        count += int(inside.sum())
    return count


def _fill(piece: Piece, start: int, out: Tensor) -> None:
    """Read elements from ``start`` of a piece into ``out``, by chunks: no second copy of it is ever in memory.

    What lies in host memory as it does in the file is read to where it belongs: half the time.
    """
    dtype = piece.entry.dtype
    step = CHUNK // dtype.itemsize
    direct = out.device.type == "cpu" and out.dtype == dtype and out.is_contiguous()
    buffer = bytearray(0 if direct else min(CHUNK, out.numel() * dtype.itemsize))
    with open(piece.path, "rb") as file:
        file.seek(piece.entry.begin + start * dtype.itemsize)
        for low in range(0, out.numel(), step):
            part = out[low : low + step]
            view = raw(part) if direct else memoryview(buffer)[: part.numel() * dtype.itemsize]
            if file.readinto(view) < len(view):
                raise CheckpointError(f"{piece.path}: the file is cut")
            if not direct:
                part.copy_(torch.frombuffer(view, dtype=dtype))


def write_pieces(path: Path, pieces: Sequence[tuple[str, Tensor]]) -> FileFact:
    """Write tensors (contiguous, on the CPU) under their keys."""
    head = header((key, tuple(tensor.shape), tensor.dtype) for key, tensor in pieces)
    return write_file(path, [head, *(raw(tensor) for _, tensor in pieces if tensor.numel())])
