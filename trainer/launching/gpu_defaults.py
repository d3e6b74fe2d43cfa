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
