"""The page of results from a GPU: what a file of each kind becomes."""

from __future__ import annotations

import json
from pathlib import Path

import make_gpu
import pytest

TESTS = {
    "device": "cpu", "date": "2026-11-24", "seconds": 10, "complete": True, "figures": {},
    "machine": {"gpus": ["H100, 570.8"], "visible": 1, "versions": {"torch": "2.11.0"}},
    "not_run": ["models in 4 bits: bitsandbytes is not installed"],
    "tests": {"a": {"outcome": "passed"}, "b": {"outcome": "skipped", "error": "cannot"}},
}  # fmt: skip
ROW = {
    "model": "124M", "loop": "hand", "compiled": True, "ms": 20.0, "p90_ms": 22.0, "host_ms": 8.0,
    "mfu": 0.4, "tokens_per_second": 819_200.0, "allocated_gib": 9.0, "reserved_gib": 10.0,
}  # fmt: skip


def test_all_files_become_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**TESTS, "complete": False, "tests": {"c": {"outcome": "failed", "error": "gap"}},
            "figures": {"d": {"refused": "not with torch 2.11"}}}  # fmt: skip
    files = {
        "tests.json": [TESTS],
        "probes.json": [more],
        "table.jsonl": [ROW],
        "probes.jsonl": [{"probe": "attention mask", "ms": 1.23456}],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr("sys.argv", ["make_gpu.py", *(str(tmp_path / name) for name in files)])
    make_gpu.main()
    text = (tmp_path / "tests.md").read_text()
    assert "1 of 3 tests passed.\nThe command was ended before the rest ran.\n" in text
    assert "- failed: c: gap\n- not run: b: cannot\n- not run: models in 4 bits" in text
    assert (
        "1 x H100, driver 570.8, torch 2.11.0; 20 s; device cpu" in text
        and "- refused there: d: not with torch 2.11\n" in text
    )
    assert "| 124M | hand | yes | 20.00 |" in text and "| attention mask | ms 1.235 |" in text
