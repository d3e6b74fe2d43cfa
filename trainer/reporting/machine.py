"""The machine that a training runs on: its speed and memory mean nothing without it."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_SOFTWARE = {"cuda": "CUDA", "nccl": "NCCL", "driver": "driver"}
_DRIVER = Path("/sys/module/nvidia/version")
_CPUS = Path("/proc/cpuinfo")


def machine(device: torch.device, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Describe the machine, for plan.json. Collective: call on every rank.

    Args:
        gather: collects a value of every rank.

    Returns:
        The CPU of this process's host and its cores. On GPUs also how many of which name the ranks
        have, and the versions of CUDA, NCCL and (where Linux shows it) the driver.
    """
    facts: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count()}
    if device.type != "cuda":
        return facts

    names = gather(torch.cuda.get_device_name(device))
    facts["gpus"] = dict(Counter(names))
    facts["cuda"] = torch.version.cuda
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if _DRIVER.exists():
        facts["driver"] = _DRIVER.read_text().strip()
    return facts


def _cpu_name() -> str:
    """Return the name of the CPU. Its architecture where Linux does not tell."""
    cpuinfo = _CPUS.read_text() if _CPUS.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE)
    return platform.machine() if model is None else model[1]


def machine_text(facts: Mapping[str, Any]) -> str:
    """Write in one line what ``machine`` returned."""
    parts = [f"{count} x {name}" for name, count in facts.get("gpus", {}).items()]
    for key, name in _SOFTWARE.items():
        if key in facts:
            parts.append(f"{name} {facts[key]}")
    parts.append(f"{facts['cpu']} ({facts['cores']} cores)")
    return ", ".join(parts)
