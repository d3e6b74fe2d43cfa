"""The table for GPUs: what it measures first, what it keeps, what it says."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_table import (
    furthest_loss,
    read,
)


@pytest.mark.slow
def test_two_rows_are_rehearsed(tmp_path: Path, rehearse: Callable[..., str]) -> None:
    out = tmp_path / "out/table.jsonl"
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
