"""Peaks of memory belong to the phase in which they were reached."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.reporting import peak_memory
from trainer.reporting.peak_memory import PeakMemory

CPU = torch.device("cpu")


def test_a_phase_that_comes_again_keeps_the_larger_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([100, 700, 300, 500])
    monkeypatch.setattr(peak_memory, "_peak_resident", lambda: next(peaks))
    memory = PeakMemory(CPU)
    assert memory.enter("training") == "set-up"
    assert memory.enter("saving") == "training"
    assert memory.enter("training") == "saving"
    assert memory.phase == "training"
    assert memory.read() == 700, "the first time of this phase had more"
    assert memory.peaks == {
        "set-up": {"resident": 100},
        "training": {"resident": 700},
        "saving": {"resident": 300},
    }


def test_the_peak_resident_set_is_read_in_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("VmPeak:\t  999 kB\nVmHWM:\t   12 kB\nVmRSS:\t   3 kB\n")
    assert PeakMemory(CPU).read() == 12 * 1024
