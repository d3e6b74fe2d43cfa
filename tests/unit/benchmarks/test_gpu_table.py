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
