"""A checksum of a sample's content, to compare the samples that different processes have read."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import torch
from torch import Tensor


def digest(item: Any) -> int:
    """Return a 32-bit checksum of the tensors, arrays, numbers and text in an item.

    Containers, dataclasses and mappings are entered. Values of other types do not count: the text
    of an object may contain an address, which differs between processes. Checkpoints store these
    checksums, so they must stay as they are.
    """
    if isinstance(item, Tensor):
        return zlib.crc32(bytes_of(item))
    if getattr(getattr(item, "dtype", None), "hasobject", False):
        item = item.tolist()  # the bytes of an array of objects are their addresses
    if hasattr(item, "tobytes"):  # an array or an image
        item = item.tobytes()
    if isinstance(item, bytes):
        return zlib.crc32(item)

    parts: Any = ()
    if dataclasses.is_dataclass(item):
        parts = [(field.name, getattr(item, field.name)) for field in dataclasses.fields(item)]
    elif hasattr(item, "keys"):  # any mapping, registered or not
        parts = [(key, item[key]) for key in item.keys()]  # noqa: SIM118
    elif isinstance(item, list | tuple | set | frozenset):
        parts = item
    digests = [*map(digest, parts)]
    if isinstance(item, set | frozenset):
        digests.sort()  # the order of a set of texts differs between processes
    text = repr(item if isinstance(item, str | int | float | complex) else digests)
    return zlib.crc32(text.encode(errors="backslashreplace"))  # also of invalid Unicode


@torch.no_grad()
def bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a tensor's elements, of the values of a sparse or nested tensor."""
    if tensor.is_sparse:
        tensor = tensor.coalesce()
    if tensor.is_nested or tensor.layout != torch.strided:
        tensor = tensor.values()
    if tensor.numel() == 0:
        return b"''"  # checkpoints hold the checksum of this text
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
