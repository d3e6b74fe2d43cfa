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
_ODD = 0x9E3779B97F4A7C1


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference, down to the parts that differ."""
    old, new = (
        dict(dotted({**of, _GROUPS: dict(enumerate(of.get(_GROUPS, ())))})) for of in (before, now)
    )
    lines = []
    for key in sorted(old.keys() | new.keys()):
        was, is_now = old.get(key), new.get(key)
        if was != is_now:
            if isinstance(was, list) and isinstance(is_now, list):
                was, is_now = _without(was, is_now), _without(is_now, was)
            lines.append(f"{key}: {json.dumps(was):.60} -> {json.dumps(is_now):.60}")
    return lines


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    return [item for item in items if item not in others]


def base_weights(parts: Parts, agreement: Agreement) -> str:
    """Return a checksum of the weights that no checkpoint holds. Collective: call on every rank."""
    dtype = DTYPES.get(parts.plan.mixed_precision, torch.float32)
    own = sum(
        zlib.crc32(shard.name.encode())
        * int(content_sum(shard.tensor[low:high], shard.start + low, dtype))
        for shard, low, high in written(parts.frozen(stored=False))
    )
    return f"{sum(agreement.gather(own)) * _ODD % (1 << 64):016x}"
