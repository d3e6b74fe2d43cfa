"""Accelerators by name: memory and peak arithmetic, from the table ``gpus.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..errors import COMMAND_LINE, ConfigError, Origin, Problem
from ..text import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator.

    Args:
        gib: memory, in GiB.
        teraflops: the peak of dense matrix products in bf16 (fp16 where a chip has none); None
            where it is not known.
        tf32, fp32: in these; ``tf32`` is None where a chip computes such products in fp32.
    """

    name: str
    gib: float
    teraflops: float | None = None
    tf32: float | None = None
    fp32: float | None = None


KNOWN = {
    name.lower(): Gpu(name=name, gib=gib, teraflops=half, tf32=tf32, fp32=fp32)
    for name, (gib, half, tf32, fp32) in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text()
    ).items()
}
_OTHER_CHIPS = {
    "TI",
    "SUPER",
    "D",
    "LAPTOP",
    "MIG",
}  # such a word after a name makes it another one, or a part of it


def gpu_of(text: str) -> Gpu:
    """Return the accelerator that a text names: ``H100``, or memory such as ``24`` or ``24GiB``.

    Raises:
        ConfigError: neither.
    """
    if number := re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:GiB|GB|G)?", text, re.IGNORECASE):
        return Gpu(
            name=f"{text} of memory" if not text.isdigit() else f"{text} GiB", gib=float(number[1])
        )
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
