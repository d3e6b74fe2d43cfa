"""The machine that a training runs on: what its speed and memory are to be held against."""

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
_DRIVER, _CPUS = Path("/sys/module/nvidia/version"), Path("/proc/cpuinfo")


def machine(device: torch.device, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Describe the machine, for plan.json. Collective: call on every rank.

    Args:
        gather: collects a value of every rank.

    Returns:
        The CPU of this process's host and its cores; on GPUs also how many of which name the ranks
        have, and the versions of CUDA, NCCL and (where Linux shows it) the driver.
    """
    known = re.search(
        r"^model name\s*: (.+)$", _CPUS.read_text() if _CPUS.exists() else "", re.MULTILINE
    )
    found: dict[str, Any] = {
        "cpu": known[1] if known else platform.machine(),
        "cores": os.cpu_count(),
    }
    if device.type != "cuda":
        return found
    names = gather(torch.cuda.get_device_name(device))
    found |= {"gpus": dict(Counter(names)), "cuda": torch.version.cuda}
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found | ({"driver": _DRIVER.read_text().strip()} if _DRIVER.exists() else {})


def machine_text(found: Mapping[str, Any]) -> str:
    """Write in one line what ``machine`` returned."""
    gpus = [f"{count} x {name}" for name, count in found.get("gpus", {}).items()]
    software = [f"{name} {found[key]}" for key, name in _SOFTWARE.items() if key in found]
    return ", ".join([*gpus, *software, f"{found['cpu']} ({found['cores']} cores)"])
