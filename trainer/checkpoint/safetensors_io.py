"""Safetensors files, read and written without a copy: https://huggingface.co/docs/safetensors.

Eight bytes of header length, a JSON header with the dtype, shape and place of each tensor, then the raw tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .untrusted import is_count, parse_json

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LONGEST_HEADER = 100 << 20  # the format's own limit
_MOST_DIMENSIONS = 64  # torch's own limit
_METADATA = "__metadata__"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of a file; ``begin`` is its first byte, counted from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def can_hold(dtype: torch.dtype) -> bool:
    """Whether the format has this dtype."""
    return dtype in _CODES


def header(entries: Iterable[tuple[str, tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]) -> bytes:
    """Return what stands before the tensors, which then follow in this order without gaps.

    Raises:
        CheckpointError: the format cannot hold a tensor of this name or dtype.
    """
    told: dict[str, object] = {_METADATA: dict(metadata)}
    offset = 0
    for name, shape, dtype in entries:
        if name in told:
            raise CheckpointError(f"{name}: two tensors of this name cannot stand in one safetensors file")
        if not can_hold(dtype):
            raise CheckpointError(f"{name}: safetensors cannot hold {dtype}")
        end = offset + math.prod(shape) * dtype.itemsize
        told[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def read_header(path: Path) -> dict[str, Entry]:
    """Read the tensors of a file by name, and hold the header to what the format asks for.

    Raises:
        CheckpointError: missing, cut, or no such file; caused by an OSError where it could not be read at all.
    """
    try:
        with open(path, "rb") as file:
            size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= min(_LONGEST_HEADER, size - 8) else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        told = parse_json(text)
        if not isinstance(told, dict):
            raise ValueError("the header is no mapping")
        told.pop(_METADATA, None)
        entries = {name: _entry(name, entry, 8 + length) for name, entry in told.items()}
        _check_places(entries, 8 + length, size)
    except ValueError as error:
        raise CheckpointError(f"{path}: no readable safetensors file: {error}") from None
    return entries


def _entry(name: str, told: Any, start: int) -> Entry:
    fields = told if isinstance(told, dict) else {}
    shape, offsets = fields.get("shape"), fields.get("data_offsets")
    dtype = DTYPES.get(str(fields.get("dtype")))
    if dtype is None:
        raise ValueError(f"{name!r} has no dtype that is known here")
    if not (isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS and all(map(is_count, shape))):
        raise ValueError(f"{name!r} has no shape")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(is_count, offsets))):
        raise ValueError(f"{name!r} has no data_offsets")
    entry = Entry(dtype=dtype, shape=tuple(shape), begin=start + offsets[0])
    if offsets[1] - offsets[0] != entry.numel * dtype.itemsize:
        raise ValueError(f"{name!r} has data_offsets that do not fit its shape")
    return entry


def _check_places(entries: Mapping[str, Entry], start: int, size: int) -> None:
    """Hold the tensors to follow each other without gaps to the end of the file, as the format wants it."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].numel)):
        if entry.begin != at:
            raise ValueError(f"{name!r} does not begin where the tensor before it ends")
        at += entry.numel * entry.dtype.itemsize
    if at != size:
        raise ValueError(f"its tensors end at byte {at}, the file at {size}")
