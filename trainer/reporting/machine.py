"""The machine of a training, without which speed and memory mean nothing."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Describe the host of this process and the GPUs of all ranks, for plan.json. Collective."""
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    name = cpu[1] if cpu else platform.machine()
    facts: dict[str, Any] = {"cpu": name, "cores": os.cpu_count()}
    if device.type == "cuda":
        facts["gpus"] = Counter(gather(torch.cuda.get_device_name(device)))
    return facts


def machine_text(facts: Mapping[str, Any]) -> str:
    """Return the facts of ``machine`` as a line."""
    parts = [f"{count} x {name}" for name, count in facts.get("gpus", {}).items()]
    return ", ".join([*parts, "{cpu} ({cores} cores)".format_map(facts)])
