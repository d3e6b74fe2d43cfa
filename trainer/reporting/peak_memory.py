"""Peak memory of this rank, for each phase of a run apart. Nothing here waits for the device."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from pathlib import Path

import torch


class PeakMemory:
    """The most memory in each phase. A phase that comes again keeps the larger peak.

    On a GPU the bytes of tensors (``allocated``) and of the allocator's blocks (``reserved``).
    Elsewhere the process's resident set (``resident``). If the system cannot reset the peak when
    a phase begins, a phase shows the largest value up to the end.
    """

    phase = "set-up"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peaks: dict[str, Counter[str]] = defaultdict(Counter)

    def enter(self, phase: str) -> str:
        """Begin another phase. Return the phase that ends."""
        self.read()
        before = self.phase
        self.phase = phase

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):  # some containers forbid this
                Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to the present size
        return before

    def read(self) -> int:
        """Return the bytes of the present phase's first measure, up to now."""
        if self.device.type == "cuda":
            current = Counter(
                allocated=torch.cuda.max_memory_allocated(self.device),
                reserved=torch.cuda.max_memory_reserved(self.device),
            )
        else:
            # Not by getrusage: in a process that a large process started, ru_maxrss begins with the
            # size of that process.
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
            kibibytes = int(peak[1]) if peak else 0  # some kernels do not tell
            current = Counter(resident=1024 * kibibytes)

        self.peaks[self.phase] |= current  # the larger of both counts
        return self.peaks[self.phase][next(iter(current))]
