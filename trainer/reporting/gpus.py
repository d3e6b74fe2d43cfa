"""Accelerators by name: memory, peak arithmetic and links, from the table ``gpus.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import usage_error
from ..text import did_you_mean

# By name: memory in GiB, peaks in TFLOP/s of matrix products in bf16, tf32 and fp32, and the GB/s
# that go to others of the machine.
KNOWN: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_PCIE = 25  # GB/s of an accelerator that is given by its memory
_RESERVED = 2**30  # for the driver's context and the workspaces of libraries
_USABLE = 0.92  # the share of the memory that an allocator can fill
# Such a word after a chip's name stands for another chip, or for a part of the chip.
_OTHER_CHIPS = {"TI", "SUPER", "D", "LAPTOP", "MAX", "MIG"}


def _numbers_of(text: str) -> list[Any] | None:
    """Return the numbers of an accelerator by name (``H100``, ``H100-80``). None if not known."""
    asked = text.lower().replace(" ", "").removesuffix("gb")
    for name, numbers in KNOWN.items():
        if asked in (name.lower(), f"{name.lower()}-{numbers[0]:g}"):
            return numbers
    return None


def link_of(text: str) -> float:
    """Return the bytes a second that an accelerator sends to others of its machine."""
    known = _numbers_of(text)
    return 1e9 * (known[-1] if known else _PCIE)


def memory_of(text: str) -> float:
    """Return the GiB of an accelerator by name (``H100-80``), or of a text (``24GiB``)."""
    known = _numbers_of(text)
    if known:
        return float(known[0])
    memory = re.fullmatch(r"(\d+(?:\.\d+)?) *(?:gib|gb|g)?", text, re.IGNORECASE)
    if memory and usable_bytes(float(memory[1])) >= 1:
        return float(memory[1])

    rule = "not a GPU known here, nor memory such as 24GiB, of which 1 GiB and 8 % stay free"
    raise usage_error("gpu", text, f"{rule}; {did_you_mean(text, KNOWN)}")


def usable_bytes(memory: float) -> float:
    """Return the bytes that the tensors of a program can fill, of a memory in GiB."""
    return _USABLE * memory * 2**30 - _RESERVED


def peak_of(device_name: str, precision: str) -> float | None:
    """Return the peak TFLOP/s of a device by the driver's name. None if unknown.

    Args:
        device_name: such as ``NVIDIA H100 80GB HBM3``.
        precision: of matrix products: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
    """
    # "RTX 4090" is RTX4090 in the table, and "RTX PRO 6000" RTXPRO6000.
    one_word = re.sub(r"(RTX|PRO) (?=PRO|\d)", r"\1", device_name.upper())
    words = set(re.split(r"[^A-Z0-9]+", one_word))
    for name in sorted(KNOWN, key=len, reverse=True):  # H100-PCIe before H100
        # A variant that is a number is the memory, which does not change the peaks.
        chip = {part for part in name.upper().split("-") if not part.isdigit()}
        if chip <= words and not words & _OTHER_CHIPS:
            _, half, tf32, fp32, _ = KNOWN[name]
            peak: float = {"fp32": fp32, "tf32": tf32 or fp32}.get(precision, half)
            return peak
    return None
