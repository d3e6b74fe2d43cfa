"""Whether a run may continue a checkpoint: the settings that differ, and the weights in no file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from ..config.plain import dotted
from ..distributed.agreement import Agreement
from ..strategies.digests import content_sum
from ..strategies.tensors import DTYPES
from .parts import Parts, written

_GROUPS = "optimizer_groups"
_MODULUS = 1 << 64
_ODD = 0x9E3779B97F4A7C1


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference, down to the parts that differ."""
    old, new = (
        dict(dotted({**of, _GROUPS: dict(enumerate(of.get(_GROUPS, ())))})) for of in (before, now)
    )
    lines = []
    for key in sorted(old.keys() | new.keys()):
        pair: Any = old.get(key), new.get(key)
        if pair[0] != pair[1]:
            if all(isinstance(items, list) for items in pair):
                pair = _without(*pair), _without(*pair[::-1])
            lines.append(
                ": ".join([key, " -> ".join(f"{json.dumps(value):.60}" for value in pair)])
            )
    return lines


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    return [item for item in items if item not in others]


def base_weights(parts: Parts, agreement: Agreement) -> str:
    """Return a checksum of the weights that no checkpoint holds. Collective: call on every rank."""
    dtype = DTYPES.get(parts.strategy.plan.mixed_precision, torch.float32)
    own = 0
    for shard, low, high in written(parts.frozen(stored=False)):
        checksum = int(content_sum(shard.tensor[low:high], shard.start + low, dtype))
        own += zlib.crc32(shard.name.encode()) * checksum * _ODD
    sums = agreement.gather(own)
    return f"{sum(sums) % _MODULUS:016x}"
