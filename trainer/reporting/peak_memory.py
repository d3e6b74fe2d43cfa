"""Peak memory of this rank, for each phase of a run apart. Nothing here waits for the device."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class PeakMemory:
    """The most memory in each phase. A phase that comes again keeps the larger peak.

    On a GPU the bytes of tensors (``allocated``) and of the allocator's blocks (``reserved``).
    Elsewhere the process's resident set (``resident``). If the system cannot reset the peak when
    a phase begins, a phase shows the largest value up to the end.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "set-up"
        self.peaks: dict[str, dict[str, int]] = {}

    def enter(self, phase: str) -> str:
        """Begin another phase. Return the phase that ends."""
        self.read()
        before = self.phase
        self.phase = phase

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):  # some containers forbid this
                _RESET.write_text("5")  # sets VmHWM to the present size
        return before

    def read(self) -> int:
        """Return the bytes of the present phase's first measure, up to now."""
        if self.device.type == "cuda":
            current = {
                "allocated": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
            }
        else:
            current = {"resident": _peak_resident()}

        peaks = self.peaks.setdefault(self.phase, {})
        for name, count in current.items():
            peaks[name] = max(count, peaks.get(name, 0))
        return next(iter(peaks.values()))


def _peak_resident() -> int:
    """Return the process's largest resident set in bytes since the last reset. 0 if unknown."""
    # Not by getrusage: in a process that a large process started, ru_maxrss begins with the size
    # of that process.
    status = _STATUS.read_text() if _STATUS.exists() else ""
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0 if peak is None else int(peak[1]) * 1024
