"""What the engines run with on GPUs where the launch file says nothing.

Their own defaults exchange all gradients after the backward pass, in one piece: on GPUs the links
then wait for the backward pass, and the next step for the links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ZERO = "zero_optimization"


def overlapped(deepspeed: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration with ``overlap_comm`` on in stages 1 and 2.

    Stage 3 has it on by itself. What the file says holds.
    """
    config = dict(deepspeed)
    zero = dict(config.get(_ZERO) or {})
    if zero.get("stage") in (1, 2):
        zero.setdefault("overlap_comm", True)
        config[_ZERO] = zero
    return config


def default_rows(deepspeed: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the row of ``trainer check`` that names what a GPU adds; none where nothing is added.

    Args:
        deepspeed: DeepSpeed's configuration, as the launch file has it.
    """
    written = deepspeed.get(_ZERO) or {}
    with_defaults = overlapped(deepspeed).get(_ZERO) or {}
    added = []
    for key, value in with_defaults.items():
        if key not in written:
            added.append(f"{_ZERO}.{key}={str(value).lower()}")
    if not added:
        return []
    source = "samecurve's default where the file does not set it"
    return [("on GPUs", f"{', '.join(added)} ({source}; none with find_unused_parameters)")]
