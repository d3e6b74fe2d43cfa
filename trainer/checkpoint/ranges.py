"""Flat ranges of named tensors: what checkpoints are made of, and how any layout reads any other.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy. A
store answers "the range [a, b) of this tensor", whoever wrote it in whichever pieces: our
checkpoints and any folder of safetensors files (an exported model, one of the Hugging Face hub) are
such stores. So resuming, resharding and loading pretrained weights are the same code, and no rank
ever holds a whole model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from io import BufferedReader
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
    """The name of a piece in a rank's file, ``kind/name/start``: its first element within the
    flattened tensor.

    ``kind/name/start+stride`` is one of some columns: each row of it begins ``stride`` elements
    after the one before.
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
        return self.start + (
            self.columns.span(self.entry.numel) if self.columns else self.entry.numel
        )

    def runs(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Yield the first and last element (exclusive) of each range that it has between two, and
        its place in it.
        """
        width, stride = self.columns or (self.entry.numel, max(1, self.entry.numel))
        rows = self.entry.numel // max(1, width)
        for row in range(
            max(0, (low - self.start) // stride), min(rows, -((self.start - high) // stride))
        ):
            at = self.start + row * stride
            if (begin := max(at, low)) < (end := min(at + width, high)):
                yield begin, end, row * width + begin - at


class Ranges:
    """A store: pieces of tensors by (kind, name), given in any order."""

    def __init__(self, found: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for kind, name, piece in found:
            self._pieces.setdefault((kind, name), []).append(piece)
        for (kind, name), pieces in self._pieces.items():
            if len({piece.entry.dtype for piece in pieces}) > 1:
                raise CheckpointError(f"{kind} {name}: stands there in several dtypes")
        self._open: Callable[[Path], BufferedReader] | None = None

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
        return max(piece.end for piece in self._pieces[kind, name])

    def check_whole(self, kind: str, name: str, numel: int) -> None:
        """Hold the pieces of a tensor of ``numel`` elements to give each once; else
        ``CheckpointError``.
        """
        at = 0
        pieces = self._pieces.get((kind, name), [])
        for start, end, _ in (
            *sorted(run for piece in pieces for run in piece.runs(0, piece.end)),
            (numel, numel, 0),
        ):
            if start > at:
                raise CheckpointError(f"{kind} {name}: elements {at} to {start} are in no file")
            if start < at:
                raise CheckpointError(
                    f"{kind} {name}: elements from {start} on stand there twice, of {numel} in all"
                )
            at = end

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep files open: a system reads ahead where a file is read on, which takes half the time
        from a disk.
        """
        with contextlib.ExitStack() as opened:
            self._open = cache(lambda path: opened.enter_context(open(path, "rb")))
            yield
        self._open = None

    @torch.no_grad()
    def read(
        self, kind: str, name: str, start: int, out: Tensor, columns: Columns | None = None
    ) -> None:
        """Fill ``out`` (1-D, on any device, of any dtype) with the elements from ``start`` on, of
        some columns only.

        Raises:
            CheckpointError: some of the range is in no file, or a file is cut.
        """
        pieces = self._pieces.get((kind, name), [])
        dtype = pieces[0].entry.dtype if pieces else out.dtype
        if columns or out.device.type != "cpu" or out.dtype != dtype or not out.is_contiguous():
            # By chunks: no second copy is ever in memory. Of columns, whole rows: files hold these
            # mostly.
            columns = columns or Columns(1, 1)
            step = max(1, CHUNK // (columns.stride * dtype.itemsize)) * columns.width
            for low in range(0, out.numel(), step):
                part = out[low : low + step]
                chunk = torch.empty(columns.span(part.numel()), dtype=dtype)
                self.read(kind, name, start + columns.at(low), chunk)
                part.copy_(columns.within(chunk, part.numel()).reshape(-1))
            return
        # What lies in host memory as it does in the file is read to where it belongs: half the
        # time.
        at, end, size, view = start, start + out.numel(), dtype.itemsize, raw(out)
        runs = [(piece, found) for piece in pieces if (found := [*piece.runs(start, end)])]
        for low, high, _ in sorted(run for _, found in runs for run in found):
            at = high if low == at else at
        if at < end:
            raise CheckpointError(f"{kind} {name}: elements {at} to {end} are in no file")
        for piece, found in runs:
            with (
                contextlib.nullcontext(self._open(piece.path))
                if self._open
                else open(piece.path, "rb") as file
            ):
                for low, high, place in found:
                    file.seek(piece.entry.begin + place * size)
                    if (
                        file.readinto(view[(low - start) * size : (high - start) * size])
                        < (high - low) * size
                    ):
                        raise CheckpointError(f"{piece.path}: the file is cut")

    def whole(self, kind: str, name: str) -> Tensor:
        """Read one whole tensor, flat, to the CPU; ``CheckpointError`` where a part of it is in no
        file.
        """
        if not self.holds(kind, name):
            raise CheckpointError(f"{kind} {name}: is in no file")
        self.check_whole(kind, name, self.size(kind, name))  # before memory is asked for
        out = torch.empty(self.size(kind, name), dtype=self.dtype(kind, name))
        self.read(kind, name, 0, out)
        return out

    def value(self, kind: str, name: str) -> Tensor:
        """Read the one value that is kept of a parameter (Adam's step); ``CheckpointError`` where
        there are more.
        """
        whole = self.whole(kind, name)
        if whole.numel() != 1:
            raise CheckpointError(f"{kind} {name}: holds {whole.numel()} values instead of one")
        return whole[0].clone()


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the store of one of our checkpoints; ``CheckpointError`` where a file holds what no
    checkpoint does.
    """
    found = []
    for path in paths:
        for text, entry in read_header(path).items():
            key = _KEY.fullmatch(text)
            if key is None:
                raise CheckpointError(f"{path}: {text!r} is no range called kind/name/start")
            columns = Columns(entry.shape[1], int(key[4])) if key[4] else None
            found.append((key[1], key[2], Piece(path, int(key[3]), entry, columns)))
    return Ranges(found)


def of_model_folder(
    folder: Path, names: Mapping[str, str] | None = None
) -> tuple[Ranges, dict[str, tuple[int, ...]]]:
    """Open a folder of whole tensors: an exported model, or one of the Hugging Face hub. Return
    store and shapes.

    Args:
        names: what tensors are called in the model, by their names in the files; the others are
            called the same.

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
                raise CheckpointError(
                    f"{folder}: {name} stands in {both}; leave one of them in the folder"
                )
            found[name] = Piece(path, 0, entry)
    shapes = {name: piece.entry.shape for name, piece in found.items()}
    return Ranges(("parameter", name, piece) for name, piece in found.items()), shapes


def write_pieces(path: Path, pieces: Sequence[tuple[str, Tensor]]) -> FileFact:
    """Write tensors (contiguous, on the CPU) under their keys."""
    head = header((key, tuple(tensor.shape), tensor.dtype) for key, tensor in pieces)
    return write_file(path, [head, *(raw(tensor) for _, tensor in pieces if tensor.numel())])
