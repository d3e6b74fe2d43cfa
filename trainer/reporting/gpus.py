"""Accelerators by name: memory and peak arithmetic, from their makers' data sheets.

Memory in GiB as a program can allocate it at most; the peak in TFLOP/s of dense bf16 matrix products (fp16 where a
chip has no bf16), without sparsity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import COMMAND_LINE, ConfigError, Origin, Problem
from ..text import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator; ``teraflops`` is None where it is not known."""

    name: str
    gib: float
    teraflops: float | None = None


KNOWN = {
    gpu.name.lower(): gpu
    for gpu in (
        Gpu(name="V100-16", gib=16, teraflops=125),
        Gpu(name="V100-32", gib=32, teraflops=125),
        Gpu(name="T4", gib=15, teraflops=65),
        Gpu(name="A10", gib=24, teraflops=125),
        Gpu(name="A100-40", gib=40, teraflops=312),
        Gpu(name="A100-80", gib=80, teraflops=312),
        Gpu(name="A6000", gib=48, teraflops=155),
        Gpu(name="L4", gib=24, teraflops=121),
        Gpu(name="L40S", gib=48, teraflops=362),
        Gpu(name="RTX3090", gib=24, teraflops=71),
        Gpu(name="RTX4090", gib=24, teraflops=165),
        Gpu(name="H100", gib=80, teraflops=989),
        Gpu(name="H200", gib=140, teraflops=989),
        Gpu(name="B200", gib=179, teraflops=2250),
        Gpu(name="MI250X", gib=64, teraflops=191),  # one of its two dies, which is one device
        Gpu(name="MI300X", gib=192, teraflops=1307),
    )
}
# What a driver calls a device, beside the names above.
_DRIVER = {
    "V100": {True: "v100-32", False: "v100-16"},
    "A100": {True: "a100-80", False: "a100-40"},
}


def gpu_of(text: str) -> Gpu:
    """Return the accelerator that a text names: ``H100``, or memory such as ``24`` or ``24GiB``.

    Raises:
        ConfigError: neither.
    """
    if number := re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:GiB|GB|G)?", text, re.IGNORECASE):
        return Gpu(name=f"{text} of memory" if not text.isdigit() else f"{text} GiB", gib=float(number[1]))
    found = KNOWN.get(text.lower())
    if found is None:
        near = did_you_mean(text, [gpu.name for gpu in KNOWN.values()])
        rule = f"not a GPU known here, nor memory such as 24GiB; {near}"
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="gpu"), value=text, rule=rule))
    return found


def peak_of(device_name: str, total_bytes: int) -> float | None:
    """Return the peak TFLOP/s of a device as its driver names it (``NVIDIA H100 80GB HBM3``); None if unknown."""
    words = re.split(r"[^A-Z0-9]+", device_name.upper().replace("RTX ", "RTX"))
    for family, by_size in _DRIVER.items():
        if any(word.startswith(family) for word in words):
            return KNOWN[by_size[total_bytes > 45 * 2**30 if family == "A100" else total_bytes > 20 * 2**30]].teraflops
    return next((gpu.teraflops for name, gpu in KNOWN.items() if name.upper() in words), None)
