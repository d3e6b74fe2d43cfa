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
        teraflops: the peak of dense matrix products in bf16 (fp16 where a chip has no bf16). None
            if it is not known.
        tf32, fp32: the peaks in these. ``tf32`` is None if a chip computes such products in
            fp32.
    """

    name: str
    gib: float
    teraflops: float | None = None
    tf32: float | None = None
    fp32: float | None = None


def _read_table() -> dict[str, Gpu]:
    """Return the accelerators of ``gpus.yaml``, by their names in lower case."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    gpus = {}
    for name, (gib, teraflops, tf32, fp32) in table.items():
        gpus[name.lower()] = Gpu(name=name, gib=gib, teraflops=teraflops, tf32=tf32, fp32=fp32)
    return gpus


KNOWN = _read_table()
# Such a word after a chip's name makes it another chip, or a part of one.
_OTHER_CHIPS = {"TI", "SUPER", "D", "LAPTOP", "MIG"}


def gpu_of(text: str) -> Gpu:
    """Return the accelerator that a text names: ``H100``, or memory such as ``24`` or ``24GiB``.

    Raises:
        ConfigError: neither.
    """
    memory = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:GiB|GB|G)?", text, re.IGNORECASE)
    if memory is not None:
        name = f"{text} GiB" if text.isdigit() else f"{text} of memory"
        return Gpu(name=name, gib=float(memory[1]))

    gpu = KNOWN.get(text.lower())
    if gpu is None:
        suggestion = did_you_mean(text, [known.name for known in KNOWN.values()])
        rule = f"not a GPU known here, nor memory such as 24GiB; {suggestion}"
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="gpu"), value=text, rule=rule))
    return gpu


def peak_of(device_name: str, total_bytes: int, precision: str) -> float | None:
    """Return the peak TFLOP/s of a device as its driver names it. None if unknown.

    Args:
        total_bytes: the device's memory, which tells variants of a chip apart.
        precision: that of matrix products: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
    """
    gpu = _gpu_of_device(device_name, total_bytes)
    if gpu is None:
        return None
    if precision == "fp32":
        return gpu.fp32
    if precision == "tf32":
        return gpu.tf32 or gpu.fp32
    return gpu.teraflops


def _gpu_of_device(device_name: str, total_bytes: int) -> Gpu | None:
    """Return the accelerator of a name such as ``NVIDIA H100 80GB HBM3``. None if unknown."""
    one_word = re.sub(r"RTX (?=\d)", "RTX", device_name.upper())  # "RTX 4090" is RTX4090 here
    words = set(re.split(r"[^A-Z0-9]+", one_word))
    for name in sorted(KNOWN, key=len, reverse=True):  # H100-PCIe before H100
        chip, _, variant = name.upper().partition("-")
        # A variant that is a number is its memory.
        has_memory = variant.isdigit() and abs(total_bytes / 2**30 / int(variant) - 1) < 0.25
        is_variant = not variant or variant in words or has_memory
        if chip in words and is_variant and not words & _OTHER_CHIPS:
            return KNOWN[name]
    return None
