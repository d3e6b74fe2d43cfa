"""Peak memory of this rank, apart for each phase of a run. Nothing here waits for the device."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_PROC = Path("/proc/self")


class PeakMemory:
    """The most memory in each phase; a phase that comes again counts on.

    On a GPU the allocator's count of tensors (``allocated``) and of what it took from the device
    (``reserved``). Elsewhere the process's resident set (``resident``). Each is set back where a
    phase begins; where the system does not let the resident set's be set back, a phase shows the
    largest up to its end (``resident since the start``).

    Attributes:
        phase: the present one.
        peaks: bytes by phase and measure; ``read`` brings those of the present phase up to date.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.phase = device, "set-up"
        self.peaks: dict[str, dict[str, int]] = {}
        self._resident = "resident"

    def enter(self, phase: str) -> str:
        """Begin another phase; returns the one that ends."""
        self.read()
        before, self.phase = self.phase, phase
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return before
        try:
            (_PROC / "clear_refs").write_text("5")  # sets VmHWM back to the present size
        except OSError:
            self._resident = "resident since the start"
        return before

    def read(self) -> int:
        """Return the bytes of the present phase's first measure, up to now."""
        if self.device.type == "cuda":
            now = {
                "allocated": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
            }
        else:
            now = {self._resident: _peak_resident()}
        kept = self.peaks.setdefault(self.phase, {})
        kept.update({name: max(count, kept.get(name, 0)) for name, count in now.items()})
        return next(iter(kept.values()))


def _peak_resident() -> int:
    """Return the process's largest resident set in bytes, since it was set back last."""
    status = _PROC / "status"
    # Of a process that was started by a large one, ru_maxrss begins with the size of that one.
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
