"""The machine of a run, in plan.json and the banner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trainer.reporting import machine as module
from trainer.reporting.machine import machine, machine_text


def test_a_cpu_has_its_name_and_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Abacus 3000 @ 1 Hz\n\nmodel name\t: Abacus 3000\n"
    )
    monkeypatch.setattr(module, "_CPUS", tmp_path / "cpuinfo")
    found = machine(torch.device("cpu"), lambda value: [value])
    assert found == {"cpu": "Abacus 3000 @ 1 Hz", "cores": os.cpu_count()}
    assert machine_text(found) == f"Abacus 3000 @ 1 Hz ({os.cpu_count()} cores)"
    monkeypatch.setattr(module, "_CPUS", tmp_path / "none")
    assert machine(torch.device("cpu"), lambda value: [value])["cpu"] == os.uname().machine


def test_gpus_of_all_ranks_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = machine(torch.device("cuda", 0), lambda value: [value, value, "NVIDIA H200 NVL"])
    assert found["gpus"] == {"NVIDIA H200": 2, "NVIDIA H200 NVL": 1}
    text = machine_text(found)
    assert text.startswith("2 x NVIDIA H200, 1 x NVIDIA H200 NVL, ")
