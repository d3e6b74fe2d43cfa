"""Flat ranges of named tensors: what checkpoints are made of, and how any layout reads any other.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy. A store
answers "the range [a, b) of this tensor", whoever wrote it in whichever pieces: our checkpoints and any
folder of safetensors files (an exported model, one of the Hugging Face hub) are such stores. So resuming,
resharding and loading pretrained weights are the same code, and no rank ever holds a whole model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from ..errors import CheckpointError
from .safetensors_io import Entry, header, raw, read_header

_KEY = re.compile(r"([^/]+)/(.+)/([0-9]{1,18})", re.DOTALL)
CHUNK = 16 << 20  # bytes read or hashed at a time: bounds the memory, large enough for the speed of the disk


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a tensor in a rank's file is a piece of; written ``kind/name/start``.

    Args:
        kind: ``parameter``, ``average``, ``optimizer.exp_avg``, ``buffer``, ...; without a slash.
        name: the tensor's name; it may hold slashes.
        start: first element of the piece within the flattened tensor.
    """

    kind: str
    name: str
    start: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.start}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """Take apart what ``str`` gave.

        Raises:
            CheckpointError: the text is no key.
        """
        parts = _KEY.fullmatch(text)
        if parts is None:
            raise CheckpointError(f"{text!r} is no kind/name/start")
        return cls(kind=parts[1], name=parts[2], start=int(parts[3]))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One contiguous part of a tensor, in a file."""

    path: Path
    start: int
    entry: Entry

    @property
    def end(self) -> int:
        return self.start + self.entry.numel


class Ranges:
    """A store: pieces of tensors by (kind, name).

    Args:
        found: the pieces, in any order.
    """

    def __init__(self, found: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for kind, name, piece in found:
            self._pieces.setdefault((kind, name), []).append(piece)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.start)

    def kinds(self, name: str) -> list[str]:
        """What is kept of a tensor: ``parameter``, ``optimizer.step``, ..."""
        return [kind for kind, other in self._pieces if other == name]

    def names(self, kind: str) -> list[str]:
        return [name for other, name in self._pieces if other == kind]

    def holds(self, kind: str, name: str) -> bool:
        return (kind, name) in self._pieces

    def numel(self, kind: str, name: str) -> int:
        """Elements of the whole tensor, 0 if there is none."""
        pieces = self._pieces.get((kind, name), [])
        return pieces[-1].end if pieces else 0

    def gap(self, kind: str, name: str, numel: int) -> str:
        """Say which elements of a tensor of ``numel`` stand in no file, or twice; empty if each stands there once."""
        at = 0
        for piece in self._pieces.get((kind, name), []):
            if piece.start > at:
                return f"{kind} {name}: elements {at} to {piece.start} are in no file"
            if piece.start < at:
                return f"{kind} {name}: elements {piece.start} to {min(at, piece.end)} stand there twice"
            at = piece.end
        if at > numel:
            return f"{kind} {name}: {at} elements stand there instead of {numel}"
        return f"{kind} {name}: elements {at} to {numel} are in no file" if at < numel else ""

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, out: Tensor) -> None:
        """Fill ``out`` (1-D, on any device, of any dtype) with the elements from ``start`` on.

        Raises:
            CheckpointError: some of the range is in no file, or a file is cut.
        """
        at, end = start, start + out.numel()
        for piece in self._pieces.get((kind, name), []):
            if at < end and piece.start <= at < piece.end:
                stop = min(end, piece.end)
                _fill(piece, at - piece.start, out[at - start : stop - start])
                at = stop
        if at < end:
            raise CheckpointError(f"{kind} {name}: elements {at} to {end} are in no file")

    def whole(self, kind: str, name: str) -> Tensor:
        """Read one whole tensor, flat, to the CPU.

        Raises:
            CheckpointError: there is none, or a part of it is in no file.
        """
        pieces = self._pieces.get((kind, name))
        if pieces is None:
            raise CheckpointError(f"{kind} {name}: is in no file")
        out = torch.empty(self.numel(kind, name), dtype=pieces[0].entry.dtype)
        self.read(kind, name, 0, out)
        return out

    def value(self, kind: str, name: str) -> Tensor:
        """Read the one value that is kept of a parameter as a whole (Adam's step).

        Raises:
            CheckpointError: there is none, or more than one.
        """
        whole = self.whole(kind, name)
        if whole.numel() != 1:
            raise CheckpointError(f"{kind} {name}: holds {whole.numel()} values instead of one")
        return whole[0].clone()


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the store of one of our checkpoints.

    Raises:
        CheckpointError: a file is no safetensors file, or holds what no checkpoint does.
    """

    def found() -> Iterator[tuple[str, str, Piece]]:
        for path in paths:
            for text, entry in read_header(path).items():
                key = Key.parse(text)
                if len(entry.shape) > 1:
                    raise CheckpointError(f"{path}: {text}: has {len(entry.shape)} dimensions, a range has one")
                yield key.kind, key.name, Piece(path=path, start=key.start, entry=entry)

    return Ranges(found())


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
            found[name] = Piece(path=path, start=0, entry=entry)
    shapes = {name: piece.entry.shape for name, piece in found.items()}
    return Ranges(("parameter", name, piece) for name, piece in found.items()), shapes


def _fill(piece: Piece, start: int, out: Tensor) -> None:
    """Elements from ``start`` of a piece into ``out``, by chunks: no second copy of it is ever in memory."""
    dtype = piece.entry.dtype
    step = CHUNK // dtype.itemsize
    buffer = bytearray(min(CHUNK, out.numel() * dtype.itemsize))
    with open(piece.path, "rb", buffering=0) as file:
        file.seek(piece.entry.begin + start * dtype.itemsize)
        for low in range(0, out.numel(), step):
            part = out[low : low + step]
            view = memoryview(buffer)[: part.numel() * dtype.itemsize]
            _read_exactly(file.readinto, view, piece.path)
            part.copy_(torch.frombuffer(view, dtype=dtype))


def _read_exactly(readinto: Callable[[memoryview], int | None], view: memoryview, path: Path) -> None:
    done = 0
    while done < len(view):
        count = readinto(view[done:])
        if not count:
            raise CheckpointError(f"{path}: the file is cut")
        done += count


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """What a manifest says about a file."""

    name: str
    bytes: int
    xxh3: str


def write_file(path: Path, parts: Iterable[bytes | memoryview], name: str | None = None) -> FileFact:
    """Write a new file, hash it on the way, and return when it is on the disk; ``name`` if it is not the path's."""
    digest, size = xxhash.xxh3_128(), 0
    with open(path, "xb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            for low in range(0, len(view), CHUNK):
                chunk = view[low : low + CHUNK]
                digest.update(chunk)
                written = 0
                while written < len(chunk):
                    written += file.write(chunk[written:])
            size += len(view)
        os.fsync(file.fileno())
    return FileFact(name=name or path.name, bytes=size, xxh3=digest.hexdigest())


def write_pieces(path: Path, pieces: Sequence[tuple[str, Tensor]]) -> FileFact:
    """Write tensors (contiguous, on the CPU) under their keys."""
    told = header(((key, tuple(tensor.shape), tensor.dtype) for key, tensor in pieces), {"format": "pt"})
    return write_file(path, [told, *(raw(tensor) for _, tensor in pieces if tensor.numel())])


def hash_file(path: Path) -> str:
    """The checksum of a file's bytes."""
    digest, buffer = xxhash.xxh3_128(), bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
