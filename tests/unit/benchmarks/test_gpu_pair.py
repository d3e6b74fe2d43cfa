"""The questions to two GPUs: which lines are alarms, and that each runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_pair import ALARM, PROBES


@pytest.mark.parametrize(
    ("line", "is_alarm"),
    [
        ("[rank1]:[W1127 17:43:35.186297756 TCPStore.cpp:106] [c10d] sendBytes failed", True),
        ("[W1127 17:43:35.186 ProcessGroupNCCL.cpp:1476] Warning: destroy_process_group()", True),
        ("frame #3: <unknown function> + 0x6747a52", True),
        ("C++ CapturedTraceback:", True),
        ("2.1 s, 37 samples/s, peak memory 0.4 GiB", False),
        ("[Wiki] step 3/12  loss 1.0", False),
    ],
)
def test_warnings_and_stacks_of_c_plus_plus_are_alarms(line: str, is_alarm: bool) -> None:
    assert bool(ALARM.search(f"before\n{line}\nbehind")) == is_alarm


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
