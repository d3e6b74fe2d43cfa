"""A checksum of a sample's content, to compare what different processes have read."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def digest(item: Any) -> int:
    """Return a 32-bit checksum of the tensors, arrays, numbers and text in an item.

    Containers, dataclasses and mappings are entered. Values of other types do not count: an object
    whose text contains its address would differ between processes. Checkpoints store these
    checksums, so they must stay what they are.
    """
    if isinstance(item, Tensor):
        return zlib.crc32(_bytes_of(item))

    if getattr(getattr(item, "dtype", None), "hasobject", False):
        item = item.tolist()  # the bytes of an array of objects are their addresses
    if hasattr(item, "tobytes"):  # an array or an image
        return zlib.crc32(item.tobytes())

    if isinstance(item, bytes):
        return zlib.crc32(item)
    if isinstance(item, str | int | float | complex):
        return text_checksum(repr(item))
    if isinstance(item, set | frozenset):
        # Sorted, because each process iterates over a set of texts in an order of its own.
        return text_checksum(repr(sorted(digest(part) for part in item)))
    return text_checksum(repr([digest(part) for part in _parts_of(item)]))


def text_checksum(text: str) -> int:
    """Return a 32-bit checksum of any text, also of one that is not valid Unicode."""
    return zlib.crc32(text.encode(errors="backslashreplace"))


def _bytes_of(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's elements; of a sparse or nested one those of its values."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    elif tensor.is_nested or tensor.layout != torch.strided:
        tensor = tensor.values()

    if tensor.numel() == 0:
        return repr("").encode()  # as older versions did: checkpoints hold these checksums
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    elements: bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return elements


def _parts_of(item: Any) -> Iterable[Any]:
    """Return the values in a container; none for a value of an unknown type."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(field.name, getattr(item, field.name)) for field in dataclasses.fields(item)]

    # Any class with these two methods, whether or not it is registered as a Mapping.
    is_mapping = callable(getattr(item, "keys", None)) and hasattr(item, "__getitem__")
    if is_mapping:
        return [(key, item[key]) for key in item.keys()]  # noqa: SIM118
    if isinstance(item, list | tuple):
        return item
    return ()
