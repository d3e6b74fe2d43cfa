"""The table for GPUs: what it measures first, what it keeps, what it says."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_table import (
    furthest_loss,
    hands,
    read,
    table,
)

ROW: dict[str, Any] = {
    "model": "124M", "loop": "hand", "compiled": True, "ms": 20.0, "p90_ms": 22.0, "host_ms": 8.0,
    "mfu": 0.4, "tokens_per_second": 819_200.0, "allocated_gib": 9.0, "reserved_gib": 10.0,
    "losses": [10.0, 8.0],
}  # fmt: skip


def test_a_row_is_held_against_the_nearest_row_by_hand_that_trained_the_same_way() -> None:
    first, last = {**ROW}, {**ROW, "ms": 22.0}
    other, failed = {**ROW, "compiled": False}, {**ROW, "error": "x"}
    del failed["ms"]
    fsdp, late = {**ROW, "loop": "fsdp"}, {**ROW, "loop": "zero2"}
    words = {**ROW, "loop": "lm"}
    rows = [first, fsdp, failed, other, late, words, last]
    assert hands(fsdp, rows) == [first, last] and hands(late, rows) == [last, first]
    assert hands(words, rows) == [], "packed documents have a loop by hand of their own"
    assert hands(words, [*rows, {**ROW, "loop": "lm-hand"}])[0]["loop"] == "lm-hand"
    assert hands(fsdp, [failed, fsdp, last]) == [last], "a first row that failed loses no ratio"


def test_the_table_has_each_row_beside_the_loop_by_hand_and_the_errors_below() -> None:
    cold = {**ROW, "loop": "cold", "ms": 900.0}
    failed = {"model": "124M", "loop": "zero1", "compiled": True, "error": "Traceback\nno memory\nexit code 1"}  # fmt: skip
    fsdp = {**ROW, "loop": "fsdp", "ms": 21.0, "losses": [10.0, 8.008], "graphs": [6, 2]}
    again = {**ROW, "ms": 20.4}
    lines = table([cold, ROW, fsdp, failed, again]).splitlines()
    assert lines[2].startswith("| 124M | hand | yes | 20.00 | 22.00 | 8.00 | 1.000 | 819,200 | 40.0% |")  # fmt: skip
    assert lines[3] == "| 124M | fsdp | yes | 21.00 | 22.00 | 8.00 | 1.050 | 819,200 | 40.0% | 9.00 | 10.00 | 1.0e-03 |"  # fmt: skip
    assert lines[5:] == [
        "- 124M | fsdp | yes: 2 graph breaks",
        "- 124M | zero1 | yes: no memory / exit code 1",
        "- 124M, compiled: the rows by hand differ by 2.0%; less is no difference",
        "- one process: FSDP2 and ZeRO divide nothing here, and save no memory",
    ]
    assert "one process" not in table([{**fsdp, "processes": 2}])


@pytest.mark.slow
def test_two_rows_are_rehearsed(tmp_path: Path, rehearse: Callable[..., str]) -> None:
    out = tmp_path / "out" / "table.jsonl"
    words = ("--loops", "hand", "fsdp", "--compiled", "no", "--timed", "4")
    printed = rehearse("gpu_table", out, *words)
    cold, hand, fsdp, again = read(out)
    assert [row["loop"] for row in (cold, hand, fsdp, again)] == ["cold", "hand", "fsdp", "hand"]
    assert len(fsdp["losses"]) == 4 + 2 + 4 + 2 and furthest_loss(fsdp, [hand]) < 1e-3
    assert fsdp["steps"] == 4 and fsdp["p90_ms"] >= fsdp["ms"]
    assert fsdp["ms"] > 0 and fsdp["tokens_per_second"] == pytest.approx(64e3 / fsdp["ms"])
    assert "| tiny | fsdp | no |" in printed
    with zipfile.ZipFile(out.parent / "traces.zip") as archive:
        traces = [name for name in archive.namelist() if name.endswith(".json.gz")]
    assert traces == ["01-tiny-hand.json.gz", "02-tiny-fsdp.json.gz", "03-tiny-hand.json.gz"]
