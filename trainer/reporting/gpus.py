"""Accelerators by name: memory and peak arithmetic, from their makers' data sheets.

Memory in GiB as a program can allocate it at most; peaks in TFLOP/s of dense matrix products, without sparsity. The
sheets were not at hand: NVIDIA's H100, H200, B200, B300 and A100 were held against other programs' tables and vendors'
pages (2026-11-22), the others are from memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import COMMAND_LINE, ConfigError, Origin, Problem
from ..text import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator.

    Args:
        teraflops: in bf16 (fp16 where a chip has no bf16); None where it is not known.
        tf32, fp32: in these; ``tf32`` is None where a chip computes such products in fp32.
    """

    name: str
    gib: float
    teraflops: float | None = None
    tf32: float | None = None
    fp32: float | None = None


# Name, GiB, TFLOP/s in bf16, tf32, fp32.
_ROWS: tuple[tuple[str, float, float, float | None, float], ...] = (
    ("V100-16", 16, 125, None, 15.7),
    ("V100-32", 32, 125, None, 15.7),
    ("V100-PCIe", 16, 112, None, 14),
    ("T4", 15, 65, None, 8.1),
    ("A10", 24, 125, 62.5, 31.2),
    ("A10G", 24, 70, 35, 35),
    ("A100-40", 40, 312, 156, 19.5),
    ("A100-80", 80, 312, 156, 19.5),
    ("A800-40", 40, 312, 156, 19.5),
    ("A800-80", 80, 312, 156, 19.5),
    ("A6000", 48, 155, 77.4, 38.7),
    ("L4", 24, 121, 60, 30.3),
    ("L40S", 48, 362, 183, 91.6),
    ("RTX3090", 24, 71, 35.6, 35.6),
    ("RTX4090", 24, 165, 82.6, 82.6),
    ("H100", 80, 989, 495, 67),
    ("H100-PCIe", 80, 756, 378, 51),
    ("H100-NVL", 94, 835, 418, 60),
    ("H800", 80, 989, 495, 67),
    ("H800-PCIe", 80, 756, 378, 51),
    ("GH200", 95, 989, 495, 67),
    ("H200", 140, 989, 495, 67),
    ("H200-NVL", 140, 835, 418, 60),
    ("B200", 179, 2250, 1125, 75),
    ("B300", 268, 2250, 1125, 75),
    ("MI250X", 64, 191, None, 47.9),  # one of its two dies, which is one device
    ("MI300X", 192, 1307, 654, 163),
)
KNOWN = {
    name.lower(): Gpu(name=name, gib=gib, teraflops=half, tf32=tf32, fp32=fp32) for name, gib, half, tf32, fp32 in _ROWS
}
_OTHER_CHIPS = {"TI", "SUPER", "D", "LAPTOP", "MIG"}  # such a word after a name makes it another one, or a part of it


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


def peak_of(device_name: str, total_bytes: int, precision: str) -> float | None:
    """Return the peak TFLOP/s of a device as its driver names it; None if unknown.

    Args:
        precision: that of matrix products: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
    """
    words = set(re.split(r"[^A-Z0-9]+", re.sub(r"RTX (?=\d)", "RTX", device_name.upper())))
    for name, gpu in sorted(KNOWN.items(), key=lambda item: -len(item[0])):  # H100-PCIe before H100
        chip, _, variant = name.upper().partition("-")
        is_variant = variant in words or not variant
        if variant.isdigit():  # of memory
            is_variant = abs(total_bytes / 2**30 - gpu.gib) < gpu.gib / 4
        if chip in words and is_variant and not words & _OTHER_CHIPS:
            return {"fp32": gpu.fp32, "tf32": gpu.tf32 or gpu.fp32}.get(precision, gpu.teraflops)
    return None
