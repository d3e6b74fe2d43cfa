"""The pieces that a rank writes to its file of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from .disk import FileFact, write_file
from .safetensors_io import header, raw


class Key(NamedTuple):
    """The name of a piece in a rank's file: ``kind/name/start``.

    Args:
        kind: ``parameter``, ``optimizer.exp_avg`` and so on.
        name: of the tensor in the model.
        start: the piece's first element within the flattened tensor.
    """

    kind: str
    name: str
    start: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.start}"


def write_pieces(path: Path, pieces: Sequence[tuple[Key | str, Tensor]]) -> FileFact:
    """Write tensors (contiguous, on the CPU) to a safetensors file, under their keys."""
    entries = ((str(key), tuple(tensor.shape), tensor.dtype) for key, tensor in pieces)
    return write_file(path, [header(entries), *(raw(tensor) for _, tensor in pieces)])
