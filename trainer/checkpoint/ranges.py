"""Flat ranges of named tensors: what checkpoints are made of, and how any layout reads any other.

The part of a parameter that a rank owns is a range of the flattened tensor under every strategy.
``Ranges`` reads "elements a to b of this tensor" from files, whichever ranks wrote them in
whichever pieces: our checkpoints, and any folder of safetensors files (an exported model, or one of
the Hugging Face hub). So resuming, resharding and loading pretrained weights are the same code, and
no rank ever holds a whole model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The name of a piece in a rank's file: ``kind/name/start`` or ``kind/name/start+stride``.

    Args:
        kind: ``parameter``, ``optimizer.exp_avg`` and so on.
        name: of the tensor in the model.
        start: the piece's first element within the flattened tensor.
        stride: for a piece that is some columns of a matrix: the length of a whole row. 0 for a
            contiguous range.
    """

    kind: str
    name: str
    start: int = 0
    stride: int = 0

    def __str__(self) -> str:
        place = f"{self.start}+{self.stride}" if self.stride else f"{self.start}"
        return f"{self.kind}/{self.name}/{place}"


class Run(NamedTuple):
    """Elements ``begin`` to ``end`` (exclusive) of a tensor, contiguous there and in a file.

    Args:
        offset: of the first one within its piece, in elements.
    """

    begin: int
    end: int
    offset: int


class Piece(NamedTuple):
    """A part of a tensor in a file: a contiguous range, or some columns of a matrix."""

    path: Path
    start: int
    entry: Entry
    columns: Columns | None = None

    @property
    def end(self) -> int:
        if self.columns is None:
            return self.start + self.entry.numel
        return self.start + self.columns.span(self.entry.numel)

    def runs(self, low: int, high: int) -> Iterator[Run]:
        """Yield every run of this piece that overlaps elements ``low`` to ``high`` (exclusive).

        A contiguous piece is one run, cut to these bounds; of some columns, each row is one.
        """
        if self.columns is None:
            begin = max(self.start, low)
            end = min(self.end, high)
            if begin < end:
                yield Run(begin, end, begin - self.start)
            return

        width, stride = self.columns
        rows = self.entry.numel // width
        first_row = max(0, (low - self.start) // stride)
        last_row = min(rows, _ceil_div(high - self.start, stride))
        for row in range(first_row, last_row):
            row_start = self.start + row * stride
            begin = max(row_start, low)
            end = min(row_start + width, high)
            if begin < end:
                yield Run(begin, end, row * width + begin - row_start)


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


class Ranges:
    """Tensors in files, read by range: the pieces of each (kind, name), given in any order."""

    def __init__(self, pieces: Iterable[tuple[str, str, Piece]]) -> None:
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        # Both only while files are kept open.
        self._files: dict[Path, BufferedReader] | None = None

        for kind, name, piece in pieces:
            self._pieces.setdefault((kind, name), []).append(piece)
        for (kind, name), same in self._pieces.items():
            if len({piece.entry.dtype for piece in same}) > 1:
                raise CheckpointError(f"{kind} {name}: is stored in several dtypes")

    def names(self, kind: str) -> list[str]:
        """Return the names of the tensors of a kind."""
        return [name for other, name in self._pieces if other == kind]

    def holds(self, kind: str, name: str) -> bool:
        """Return whether there is a piece of a tensor."""
        return (kind, name) in self._pieces

    def dtype(self, kind: str, name: str) -> torch.dtype:
        """Return the dtype of a stored tensor."""
        return self._pieces[kind, name][0].entry.dtype

    def size(self, kind: str, name: str) -> int:
        """Return the number of elements of a tensor that is stored whole."""
        return max(piece.end for piece in self._pieces[kind, name])

    def check_whole(self, kind: str, name: str, numel: int) -> None:
        """Check that the pieces of a tensor hold each of its ``numel`` elements once.

        Raises:
            CheckpointError: some are in no file, or in two pieces.
        """
        runs: list[Run] = []
        for piece in self._pieces.get((kind, name), []):
            runs.extend(piece.runs(0, piece.end))

        covered = 0  # all elements up to this one are there once
        for run in sorted(runs):
            if run.begin > covered:
                raise _missing(kind, name, covered, run.begin)
            if run.begin < covered:
                raise CheckpointError(
                    f"{kind} {name}: elements from {run.begin} on are stored twice, of {numel}"
                )
            covered = run.end

        if covered < numel:
            raise _missing(kind, name, covered, numel)
        if covered > numel:
            raise CheckpointError(
                f"{kind} {name}: {covered} elements are stored instead of {numel}"
            )

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep files open within the block, and the page-locked memory for reading onto a GPU.

        The system reads ahead in a file that is read from front to back, which takes half the time
        from a disk. What was read onto a GPU is complete when the block ends; within it only for
        work on the stream that the reads were queued on.
        """
        self._files = {}
        try:
            yield
        finally:
            for file in self._files.values():
                file.close()
            self._files = None

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[BufferedReader]:
        if self._files is None:
            with open(path, "rb") as file:
                yield file
            return

        if path not in self._files:
            self._files[path] = open(path, "rb")  # noqa: SIM115  (``kept_open`` closes it)
        yield self._files[path]

    @torch.no_grad()
    def read(
        self, kind: str, name: str, start: int, out: Tensor, columns: Columns | None = None
    ) -> None:
        """Fill ``out`` with the elements of a tensor from ``start`` on.

        Args:
            out: 1-D, on any device, of any dtype.
            columns: to read some columns of a matrix only; then ``start`` is the first of them.

        Raises:
            CheckpointError: some of the range is in no file, or a file is cut.
        """
        is_as_in_file = (
            columns is None
            and out.device.type == "cpu"
            and out.is_contiguous()
            and (not self.holds(kind, name) or out.dtype == self.dtype(kind, name))
        )
        if is_as_in_file:
            self._read_directly(kind, name, start, out)
        else:
            self._read_in_chunks(kind, name, start, out, columns or Columns(1, 1))

    def _read_in_chunks(
        self, kind: str, name: str, start: int, out: Tensor, columns: Columns
    ) -> None:
        """Read elements that are to be converted or selected, some at a time.

        So a second copy of a tensor is never in memory. Of columns whole rows are read, since that
        is how most files hold them. A GPU converts and selects by itself, while the host reads on.
        """
        dtype = self.dtype(kind, name) if self.holds(kind, name) else out.dtype
        row_bytes = columns.stride * dtype.itemsize
        rows = max(1, CHUNK // row_bytes)
        step = rows * columns.width
        for low in range(0, out.numel(), step):
            part = out[low : low + step]
            count = columns.span(part.numel())
            chunk = torch.empty(count, dtype=dtype)

            self._read_directly(kind, name, start + columns.at(low), chunk)
            if columns.width == columns.stride:
                part.copy_(chunk)
            else:
                part.view(-1, columns.width).copy_(columns.within(chunk, part.numel()))

    def _read_directly(self, kind: str, name: str, start: int, out: Tensor) -> None:
        """Read elements to where they belong, without a copy: half the time of reading in chunks.

        Args:
            out: contiguous, on the CPU, of the dtype in the files.
        """
        end = start + out.numel()
        found: list[tuple[Piece, list[Run]]] = []
        runs: list[Run] = []
        for piece in self._pieces.get((kind, name), []):
            of_piece = list(piece.runs(start, end))
            if of_piece:
                found.append((piece, of_piece))
                runs.extend(of_piece)

        covered = start
        for run in sorted(runs):
            if run.begin == covered:
                covered = run.end
        if covered < end:
            raise _missing(kind, name, covered, end)

        content = raw(out)
        itemsize = out.dtype.itemsize
        for piece, of_piece in found:
            with self._opened(piece.path) as file:
                for run in of_piece:
                    target = content[(run.begin - start) * itemsize : (run.end - start) * itemsize]
                    file.seek(piece.entry.begin + run.offset * itemsize)
                    if file.readinto(target) < len(target):
                        raise CheckpointError(f"{piece.path}: the file is cut")

    def whole(self, kind: str, name: str) -> Tensor:
        """Read one whole tensor, flat, to the CPU.

        Raises:
            CheckpointError: a part of it is in no file.
        """
        if not self.holds(kind, name):
            raise CheckpointError(f"{kind} {name}: is in no file")
        numel = self.size(kind, name)
        self.check_whole(kind, name, numel)  # before the memory for it is allocated
        out = torch.empty(numel, dtype=self.dtype(kind, name))
        self.read(kind, name, 0, out)
        return out

    def value(self, kind: str, name: str) -> Tensor:
        """Read the one value that is stored of a parameter (Adam's step), as a scalar tensor.

        Raises:
            CheckpointError: there are more, or none.
        """
        whole = self.whole(kind, name)
        if whole.numel() != 1:
            raise CheckpointError(f"{kind} {name}: holds {whole.numel()} values instead of one")
        return whole[0].clone()


def _missing(kind: str, name: str, begin: int, end: int) -> CheckpointError:
    return CheckpointError(f"{kind} {name}: elements {begin} to {end} are in no file")


def of_rank_files(paths: Iterable[Path]) -> Ranges:
    """Open the tensors of one of our checkpoints; only the headers are read.

    Raises:
        CheckpointError: a file cannot be read, or a name in it is no ``kind/name/start``.
    """
    pieces = []
    for path in paths:
        for text, entry in read_header(path).items():
            key = _KEY.fullmatch(text)
            if key is None:
                raise CheckpointError(f"{path}: {text!r} is no range called kind/name/start")
            kind, name, start, stride = key.groups()
            columns = Columns(entry.shape[1], int(stride)) if stride else None
            pieces.append((kind, name, Piece(path, int(start), entry, columns)))
    return Ranges(pieces)


def of_model_folder(
    folder: Path, names: Mapping[str, str] | None = None
) -> tuple[Ranges, dict[str, tuple[int, ...]]]:
    """Open a folder of whole tensors: an exported model, or one of the Hugging Face hub.

    Args:
        names: the name of a tensor in the model, by its name in the files; by default the same.

    Returns:
        The tensors, all of the kind ``parameter``, and the shape of each.

    Raises:
        CheckpointError: there is no safetensors file, or two of them hold a tensor of one name.
    """
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not paths:
        raise CheckpointError(f"{folder}: holds no .safetensors file")

    pieces: dict[str, Piece] = {}
    for path in paths:
        for name_in_file, entry in read_header(path).items():
            name = (names or {}).get(name_in_file, name_in_file)
            if name in pieces:
                raise CheckpointError(
                    f"{folder}: {name} is in {pieces[name].path.name} and in {path.name}; "
                    "leave one of them in the folder"
                )
            pieces[name] = Piece(path, 0, entry)

    shapes = {name: piece.entry.shape for name, piece in pieces.items()}
    ranges = Ranges(("parameter", name, piece) for name, piece in pieces.items())
    return ranges, shapes


def write_pieces(path: Path, pieces: Sequence[tuple[str, Tensor]]) -> FileFact:
    """Write tensors (contiguous, on the CPU) to a safetensors file, under their keys."""
    head = header((key, tuple(tensor.shape), tensor.dtype) for key, tensor in pieces)
    content = [raw(tensor) for _, tensor in pieces if tensor.numel()]
    return write_file(path, [head, *content])
