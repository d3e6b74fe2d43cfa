"""``profile_steps`` writes a trace and a table of exactly these steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from one_process import fit, log_of


def traced_calls(folder: Path, name: str) -> int:
    with gzip.open(folder / "profile/trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    return sum(1 for event in events if event.get("name", "").startswith(name))


def test_the_steps_asked_for_are_in_the_trace_and_the_table(tmp_path: Path) -> None:
    fit(tmp_path, profile_steps="3-4")
    assert traced_calls(tmp_path, "Optimizer.step") == 2
    table = (tmp_path / "profile/operations.txt").read_text()
    assert "Self CPU" in table and "Optimizer.step" in table
    assert f"profile of steps 3 to 4: {tmp_path / 'profile'}" in log_of(tmp_path)


def test_a_profile_ends_with_the_run(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=5, profile_steps="5-20")
    assert traced_calls(tmp_path, "Optimizer.step") == 1
