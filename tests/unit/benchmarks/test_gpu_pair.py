"""The questions to two GPUs: which lines are alarms, and that each runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_pair import PROBES


@pytest.mark.slow
def test_every_question_is_rehearsed(tmp_path: Path, rehearse: Callable[..., str]) -> None:
    out = tmp_path / "probes.jsonl"
    rehearse("gpu_pair", out)
    rows = {row["probe"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == [f"pair {probe}" for probe in PROBES]
    for probe in PROBES[:3]:
        assert rows[f"pair {probe}"]["codes"] == [0, 0]
        assert rows[f"pair {probe}"]["alarms_behind_the_last_line"] == 0
    for probe in PROBES[3:]:
        row = rows[f"pair {probe}"]
        assert 0 not in row["codes"] and 0 < row["named"] <= row["ended"] < 60, row
