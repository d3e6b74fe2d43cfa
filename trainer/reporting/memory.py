"""Peak memory of this rank, for each phase of a run apart. Nothing here waits for the device."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_PROC = Path("/proc/self")


class PeakMemory:
    """The most memory in each phase. A phase that comes again keeps the larger peak.

    On a GPU the allocator's count of tensors (``allocated``) and of what it took from the device
    (``reserved``). Elsewhere the process's resident set (``resident``). Each is reset where a phase
    begins. If the system does not let the peak of the resident set be reset, a phase shows the
    largest up to its end (``resident since the start``).

    Attributes:
        phase: the present phase.
        peaks: bytes by phase and measure. ``read`` brings those of the present phase up to date.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "set-up"
        self.peaks: dict[str, dict[str, int]] = {}
        self._resident = "resident"

    def enter(self, phase: str) -> str:
        """Begin another phase. Return the phase that ends."""
        self.read()
        before = self.phase
        self.phase = phase

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._reset_peak_resident()
        return before

    def read(self) -> int:
        """Return the bytes of the present phase's first measure, up to now."""
        if self.device.type == "cuda":
            current = {
                "allocated": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
            }
        else:
            current = {self._resident: _peak_resident()}

        peaks = self.peaks.setdefault(self.phase, {})
        for name, count in current.items():
            peaks[name] = max(count, peaks.get(name, 0))
        return next(iter(peaks.values()))

    def _reset_peak_resident(self) -> None:
        try:
            (_PROC / "clear_refs").write_text("5")  # sets VmHWM to the present size
        except OSError:
            self._resident = "resident since the start"


def _peak_resident() -> int:
    """Return the process's largest resident set in bytes, since it was last reset."""
    # Not getrusage first: in a process that a large process started, ru_maxrss begins with the
    # size of that process.
    status = _PROC / "status"
    if status.exists():
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if peak is not None:
            return int(peak[1]) * 1024

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
