"""Where the time of a run goes, and what its last lines say about that."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch

from trainer.reporting.meter import Meter, summary_text


def slowly(count: int, seconds: float) -> Any:
    for number in range(count):
        time.sleep(seconds)
        yield number


def test_the_parts_add_up_to_the_wall_time() -> None:
    meter = Meter(torch.device("cpu"))
    meter.start()
    for _ in meter.waiting("data", slowly(3, 0.02)):
        time.sleep(0.02)
        meter.step(8)
        meter.count(100, trained=25)
    with meter.paused("evaluation"):
        time.sleep(0.03)
    of_meter = meter.summary(
        lambda value: [value, value], operations=6e6, world_size=2, precision="fp32"
    )
    evaluation = {"eval/loss": 0.5, "eval/recall/0": 1.0}
    summary = {"steps": 3, "total_steps": 3, "samples": 24, **of_meter, "evaluation": evaluation}
    seconds = summary["seconds"]
    assert seconds["data"] >= 0.06 and seconds["evaluation"] >= 0.03
    assert seconds["training"] >= seconds["data"] + 0.06
    whole = seconds["training"] + seconds["evaluation"] + seconds["start-up"]
    assert whole == pytest.approx(seconds["wall"], abs=2e-3)
    assert seconds["start-up"] > 0.1, "from the start of the process, with what it imports"
    assert summary["tokens_per_second"] == pytest.approx(300 / seconds["training"], rel=0.02)
    assert summary["trained_tokens_per_second"] == pytest.approx(
        summary["tokens_per_second"] / 4, rel=1e-3
    )
    assert "mfu" not in summary, "no peak is known for a CPU"

    lines = summary_text(summary, "runs/x/model").splitlines()
    assert lines[0] == "done: 3 steps, eval/loss 0.5000"
    assert re.fullmatch(r"[\d.]+ s, [\d,]+ tokens/s, peak memory [\d.]+ [MG]iB", lines[1])
    assert lines[2:] == ["model: runs/x/model"]


def test_a_reading_has_the_speed_since_the_last_reading() -> None:
    meter, began = Meter(torch.device("cpu")), time.perf_counter()
    meter.start()
    meter.step(100)
    time.sleep(0.02)
    with meter.paused("saving"):
        time.sleep(0.1)
    first = meter.read(steps_left=10)
    # Training took at least 0.02 s, and at most what passed less 0.1 s of saving.
    assert 100 / (time.perf_counter() - began - 0.1) <= first["samples_per_second"] <= 100 / 0.02
    assert "tokens_per_second" not in first
    time.sleep(0.02)
    assert meter.read(steps_left=9)["samples_per_second"] == 0


def test_mfu_counts_all_tokens_that_are_computed_and_their_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    meter = Meter(torch.device("cpu"))
    meter.start()
    time.sleep(0.02)
    meter.count(1000, trained=250)
    meter.device = torch.device("cuda")  # after what asks the device: there is none
    RecordingGpu(monkeypatch)
    summary = meter.summary(
        lambda value: [value] * 2, operations=6e9, world_size=2, precision="bf16"
    )
    operations_per_second = 6e9 * summary["tokens_per_second"]
    assert summary["mfu"] == pytest.approx(operations_per_second / 2 / 989e12, abs=6e-5)
    assert summary["mfu"] > 0.001, "or the assertion above shows nothing"


class RecordingGpu:
    """A substitute for ``torch.cuda``, whose allocator keeps blocks reserved; it records calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        for name in (
            "synchronize",
            "reset_peak_memory_stats",
            "max_memory_allocated",
            "max_memory_reserved",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def hold(self, count: int) -> None:
        self.allocated = count
        self.peak = max(self.peak, count)
        self.reserved = self.peak_reserved = max(self.reserved, count)

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")
        time.sleep(0.05)  # steps that are still queued

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls.append("reset")
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.peak

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak_reserved


def test_peaks_on_a_gpu_belong_to_their_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = RecordingGpu(monkeypatch)
    meter = Meter(torch.device("cuda", 0))
    gpu.hold(900)  # a whole model, before it is divided
    gpu.hold(100)
    meter.start()
    assert gpu.calls == ["reset"], "a phase of training does not wait for the device"
    gpu.hold(300)
    gpu.hold(100)
    with meter.paused("evaluation"):
        gpu.hold(200)
        gpu.hold(100)
    assert gpu.calls == ["reset", "synchronize", "reset", "reset"]
    assert meter.spent["evaluation"] < 0.05, "steps that were queued count as training"
    gpu.hold(250)
    assert meter.read(steps_left=1)["peak_memory_bytes"] == 300, "the largest of the whole phase"
    summary = meter.summary(
        lambda value: [value, value], operations=6.0, world_size=2, precision="bf16"
    )
    assert summary["peak_memory_bytes"] == [300, 300]
    assert summary["memory"] == {
        "set-up": {"allocated": 900, "reserved": 900},
        "training": {"allocated": 300, "reserved": 900},
        "evaluation": {"allocated": 200, "reserved": 900},
    }
    text = summary_text(
        {"steps": 1, "total_steps": 1, "samples": 1, "evaluation": {}, **summary}, "m"
    )
    assert "peak memory 300 B\nmodel: m" in text


def test_the_peak_resident_set_is_reset_between_phases() -> None:
    size = 96 * 2**20
    meter = Meter(torch.device("cpu"))
    torch.ones(size, dtype=torch.uint8)
    meter.start()
    before = meter.memory.read()
    with meter.paused("evaluation"):
        torch.ones(size, dtype=torch.uint8)
    assert meter.memory.read() < before + size / 2
    peaks = {phase: found["resident"] for phase, found in meter.memory.peaks.items()}
    assert min(peaks["set-up"], peaks["evaluation"]) > peaks["training"] + size / 2
