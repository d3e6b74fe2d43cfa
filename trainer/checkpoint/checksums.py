"""Checksums of weights that do not depend on the layout: of what was read, and of what no
checkpoint holds.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..distributed.agreement import Agreement
from ..errors import CheckpointError
from ..strategies import Shard
from ..text import listed
from .disk import CHUNK
from .parts import Parts
from .ranges import Ranges, of_model_folder

_SUMMED = 1 << 19  # elements of a checksum at a time: some megabytes


def check_dtypes(folder: Path, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Hold the dtypes of a model, in which what learns is kept in full precision, against those of
    its folder.

    Args:
        names: what tensors are called in the model, by their names in the files.
        tensors: of the model, by name.

    Raises:
        CheckpointError: reading the files would round what stands there, or they are no safetensors
            files.
    """
    store, _ = of_model_folder(folder, names)
    for name in store.names("parameter"):
        stored, own = (
            store.dtype("parameter", name),
            tensors[name].dtype if name in tensors else torch.float64,
        )
        if own.is_floating_point and not _holds(own, stored):
            theirs, mine = (str(dtype).removeprefix("torch.") for dtype in (stored, own))
            rule = f"the model has it in {mine}, which would round it; build the model in {theirs}"
            raise CheckpointError(f"{folder}: {name} stands there in {theirs}, and {rule}")


def check_read(
    parts: Parts,
    store: Ranges,
    places: Mapping[str, tuple[str, str]],
    source: Path,
    agreement: Agreement,
) -> str:
    """Hold the parameters against the files that they were read from; returns the checksum of both.
    Collective.

    Each rank reads an equal part of each tensor once more, from what the machine still has in
    memory: not the part that it has of the model.

    Args:
        places: kind and name in the store, by the name in the model.
        source: for messages.

    Raises:
        CheckpointError: a parameter is not what stands there.
    """
    rank, world = parts.rank, parts.world_size
    shards = [shard for shard in parts.strategy.shards(trainable=None) if shard.name in places]
    dtypes = {}
    for name, dtype in {
        pair
        for held in agreement.gather({(s.name, s.tensor.dtype) for s in shards})
        for pair in held
    }:
        stored = store.dtype(*places[name])
        dtypes[name] = (
            stored if _holds(dtype, stored) else dtype
        )  # some engines round what does not learn
    read, there = Counter[str](), Counter[str]()
    for shard, low, high in parts.dealt(shards):
        read[shard.name] += _sum_of(shard, low, high, dtypes[shard.name])
    for name, dtype in dtypes.items():
        size, step = store.size(*places[name]), CHUNK // dtype.itemsize
        end = size * (rank + 1) // world
        for low in range(size * rank // world, end, step):
            part = torch.empty(min(step, end - low), dtype=dtype)
            store.read(*places[name], low, part)
            there[name] += content_sum(part, low, dtype)
    sums = agreement.gather((dict(read), dict(there)))
    wrong, total = [], 0
    for name in dtypes:
        one, other = (
            sum(of_rank[side].get(name, 0) for of_rank in sums) % (1 << 64) for side in (0, 1)
        )
        total += zlib.crc32(name.encode()) * other
        wrong += [name] if one != other else []
    if wrong:
        raise CheckpointError(
            f"{source}: memory or a disk is faulty: what was read is not what stands there: {listed(wrong)}"
        )
    return f"{total % (1 << 64):016x}"


def base_weights(parts: Parts, agreement: Agreement) -> str | None:
    """Return a checksum of the weights below an adapter, which no checkpoint holds; None without
    one. Collective.

    It is the same on every layout of one precision.
    """
    if parts.model_file.names is None:
        return None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
        parts.strategy.plan.mixed_precision, torch.float32
    )
    own = 0
    for shard, low, high in parts.dealt(parts.strategy.shards(trainable=False)):
        own += zlib.crc32(shard.name.encode()) * _sum_of(shard, low, high, dtype)
    return f"{sum(agreement.gather(own)) % (1 << 64):016x}"


def content_sum(values: Tensor, start: int, dtype: torch.dtype) -> int:
    """Return a checksum of a flat part of a tensor, rounded to ``dtype``: those of all parts add up
    to the whole's.

    Args:
        start: of the part within the whole tensor, in elements.
    """
    width, total, odd = 8 // dtype.itemsize, 0, 0x9E3779B97F4A7C1
    place = torch.arange(_SUMMED // width + 1, device=values.device)
    for low in range(0, values.numel(), _SUMMED):
        part = values[low : low + _SUMMED]
        # Read as whole words of 64 bits, in zeros where a neighbouring part has the rest of the
        # first and the last one.
        first, before = divmod(start + low, width)
        words = values.new_zeros(-(-(before + len(part)) // width) * width, dtype=dtype)
        words[before : before + len(part)] = part
        words = words.view(torch.int64)
        # Each counts (2 place + 1) odd times: an odd number, so no single bit is lost where
        # integers wrap around.
        total += int(words.sum()) * (2 * first + 1) * odd + 2 * odd * int(
            (words * place[: len(words)]).sum()
        )
    return total % (1 << 64)


def _sum_of(shard: Shard, low: int, high: int, dtype: torch.dtype) -> int:
    values, columns = shard.tensor[low:high], shard.columns
    if columns is None:
        return content_sum(values, shard.start + low, dtype)
    total, step = 0, max(1, CHUNK // (columns.stride * values.itemsize)) * columns.width
    for at in range(0, len(values), step):  # in rows of zeros, which add nothing
        part = values[at : at + step]
        rows = values.new_zeros(columns.span(len(part)))
        columns.within(rows, len(part)).copy_(part.view(-1, columns.width))
        total += content_sum(rows, shard.start + columns.at(low + at), dtype)
    return total


def _holds(dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Tell whether a dtype has every value of another one."""
    return torch.promote_types(dtype, stored) == dtype
