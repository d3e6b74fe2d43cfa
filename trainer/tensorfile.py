"""Safetensors files, read and written without a copy: https://huggingface.co/docs/safetensors.

Eight bytes of header length, a JSON header with the dtype, shape and place of each tensor, then the raw tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import CheckpointError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LONGEST_HEADER = 100 << 20  # the format's own limit


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
    """What stands before the tensors, which then follow in this order without gaps."""
    told: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, shape, dtype in entries:
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
    """The tensors of a file by name.

    Raises:
        CheckpointError: missing, cut, or no such file.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= _LONGEST_HEADER else b""
        told: dict[str, Any] = json.loads(text)
        told.pop("__metadata__", None)
        entries = {
            name: Entry(
                dtype=DTYPES[entry["dtype"]],
                shape=tuple(entry["shape"]),
                begin=8 + length + entry["data_offsets"][0],
            )
            for name, entry in told.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: no readable safetensors file: {error!r}") from None
    return entries
