"""Safetensors files, read and written without a copy: https://huggingface.co/docs/safetensors.

A file holds eight bytes with the length of the header, a JSON header with the dtype, shape and
place of each tensor, and then the raw tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError
from ..private.safetensors import DTYPES
from .disk import Unreadable, write_file

METADATA = "__metadata__"  # the key of a header that is no tensor
CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as code has it: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


class Entry(NamedTuple):
    """A tensor of a file. ``begin`` is its first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def header(entries: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> bytes:
    """Return the first bytes of a file whose tensors follow: name, shape and dtype of each."""
    fields: dict[str, object] = {METADATA: {"format": "pt"}}
    offset = 0
    for name, shape, dtype in entries:
        end = offset + math.prod(shape) * dtype.itemsize
        fields[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end

    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, not copied if the tensor is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def read_header(path: Path) -> dict[str, Entry]:
    """Read the names, dtypes, shapes and places of a file's tensors.

    The safetensors library checks the header. ``Unreadable`` tells a file that the machine cannot
    read, another ``CheckpointError`` a file that is cut or of another sort.
    """
    entries = {}
    try:
        with open(path, "rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")

        with safe_open(path, framework="pt") as tensors:
            for name in tensors.offset_keys():
                tensor = tensors.get_slice(name)
                code = tensor.get_dtype()
                if code not in DTYPES:
                    raise CheckpointError(
                        f"{path}: {name!r} has dtype {code}, which this program cannot read"
                    )
                entries[name] = Entry(DTYPES[code], tuple(tensor.get_shape()), begin)
                begin += entries[name].numel * DTYPES[code].itemsize

    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}: no readable safetensors file: {error}") from None
    return entries


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


def write_pieces(path: Path, pieces: Sequence[tuple[Key | str, Tensor]]) -> dict[str, Any]:
    """Write tensors (contiguous, on the CPU) under their keys, and return as ``write_file``."""
    entries = ((str(key), tuple(tensor.shape), tensor.dtype) for key, tensor in pieces)
    return write_file(path, [header(entries), *(raw(tensor) for _, tensor in pieces)])
