"""The questions to a GPU: what they compute, and that each runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_probes import PROBES


@pytest.mark.slow
def test_every_probe_is_rehearsed(tmp_path: Path, rehearse: Callable[..., str]) -> None:
    out = tmp_path / "probes.jsonl"
    rehearse("gpu_probes", out, "--budget", "500")
    rows = {row["probe"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == list(PROBES)
    assert [probe for probe, row in rows.items() if "error" in row] == []
    assert rows["saving"]["second_stall_seconds"] > 0 and rows["saving"]["gib"] > 0
    assert rows["loading fsdp"]["gib_per_second"] > 0 and rows["attention mask"]["ms"] > 0
    assert "not_run" in rows["attention varlen"]
    plain, compiled, chunks = (
        rows[f"loss {way}"]["loss"] for way in ("plain", "compiled", "chunks")
    )
    assert plain == pytest.approx(compiled, rel=1e-3) and plain == pytest.approx(chunks, rel=1e-3)
