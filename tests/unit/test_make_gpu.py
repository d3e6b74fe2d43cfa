"""The page of results from a GPU, of files of each kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launchers import ROOT, completed

TESTS = {
    "device": "cpu", "date": "2026-11-24", "seconds": 10, "complete": False, "figures": {},
    "machine": {"gpus": ["H100, 570.8"], "visible": 1, "versions": {"torch": "2.11.0"}},
    "not_run": ["models in 4 bits: bitsandbytes is not installed"],
    "tests": {"a": {"outcome": "passed"}, "b": {"outcome": "failed", "error": "gap"}},
}  # fmt: skip
ROW = {
    "model": "124M", "loop": "hand", "compiled": True, "ms": 20.0, "p90_ms": 22.0, "host_ms": 8.0,
    "mfu": 0.4, "tokens_per_second": 819_200.0, "allocated_gib": 9.0, "reserved_gib": 10.0,
}  # fmt: skip


def test_all_files_become_one_page(tmp_path: Path) -> None:
    files = {"tests.json": TESTS, "table.jsonl": ROW, "probes.jsonl": {"probe": "mask", "ms": 1.5}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    done = completed(
        [sys.executable, "docs/make_gpu.py", *(str(tmp_path / name) for name in files)]
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "tests.md").read_text()
    for line in (
        "1 x H100, driver 570.8, torch 2.11.0; 10 s; device cpu",
        "1 of 2 tests passed.\nThe command was ended before the rest ran.\n- failed: b: gap\n",
        "| 124M | hand | yes | 20.00 |",
        "| mask | ms 1.5 |",
    ):
        assert line in text
    assert str(ROOT) not in text
