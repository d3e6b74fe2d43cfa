"""A checksum of a sample's content, to compare the samples that different processes have read.

Traces of attributes tell which of them change while code runs.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import deque
from collections.abc import Mapping
from inspect import getclosurevars, isfunction
from itertools import islice
from logging import Logger
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..private.torch import edit_count


def digest(item: Any) -> int:
    """Return a 32-bit checksum of the tensors, arrays, numbers and text in an item.

    Values of other types do not count: the text of an object may contain an address, which differs
    between processes. Checkpoints store these checksums, so they must stay as they are.
    """
    if isinstance(item, Tensor):
        return zlib.crc32(bytes_of(item))
    if getattr(getattr(item, "dtype", None), "hasobject", False):
        item = item.tolist()  # the bytes of an array of objects are their addresses
    if hasattr(item, "tobytes"):  # an array or an image
        item = item.tobytes()
    if isinstance(item, bytes):
        return zlib.crc32(item)

    if dataclasses.is_dataclass(item):
        item = [(field.name, getattr(item, field.name)) for field in dataclasses.fields(item)]
    if hasattr(item, "keys"):  # any mapping, registered or not
        item = [(key, item[key]) for key in item.keys()]  # noqa: SIM118
    is_set = isinstance(item, set | frozenset)
    if not isinstance(item, str | int | float | complex):
        item = [*map(digest, item if is_set or isinstance(item, list | tuple) else ())]
    if is_set:
        item.sort()  # the order of a set of texts differs between processes
    return zlib.crc32(repr(item).encode(errors="backslashreplace"))  # also of invalid Unicode


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


def traces(thing: Any, depth: int = 0) -> dict[str, Any]:
    """Return something for each variable of an object that is equal until the value changes.

    Args:
        thing: an object with attributes, or a function with variables of the code around.
        depth: to which objects within are entered.
    """
    own = getclosurevars(thing).nonlocals if isfunction(thing) else vars(thing)
    return {name: _trace(value, depth) for name, value in own.items()}


def _trace(value: Any, depth: int) -> Any:
    """Return something that is equal until a value changes. Only a part of a long one counts."""
    if isinstance(value, str | int | float):
        return repr(value)  # NaN is not equal to NaN
    if isinstance(value, torch.Generator):
        return bytes(value.get_state())
    if isinstance(value, Tensor):
        return id(value), edit_count(value)
    if isinstance(value, nn.Module):
        value = [*value.parameters(), *value.buffers()]
    elif isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple | set | deque):
        return len(value), [_trace(part, depth) for part in islice(value, 100)]
    is_apart = isinstance(value, type | ModuleType | Logger | Optimizer | LRScheduler)
    if depth and hasattr(value, "__dict__") and not is_apart:
        return traces(value, depth - 1)
    return id(value)
