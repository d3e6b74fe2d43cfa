"""One command for a machine with a GPU: what it runs, where results go, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from launchers import ROOT

from benchmarks import gpu_run


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with patch.dict(os.environ):
        os.environ.pop("PYTEST_ADDOPTS", None)  # -v there would change what pytest lists
        yield


@pytest.mark.slow
def test_the_parts_run_each_gpu_test_once(tmp_path: Path) -> None:
    gpu_run.set_up(rehearse=True)

    def collected(words: list[str]) -> list[str]:
        done = subprocess.run(
            [*(word for word in words if word != "-v"), "--collect-only", "-q"],
            cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [line for line in done.stdout.splitlines() if "::" in line]

    [tests] = gpu_run.commands("tests", tmp_path, rehearse=False)
    probes, later = gpu_run.commands("probes", tmp_path, rehearse=False)
    assert probes[2:] == ["benchmarks.gpu_probes", "--out", str(tmp_path / "probes.jsonl")]
    every = collected([sys.executable, "-m", "pytest", "tests/gpu"])
    assert sorted(collected(tests) + collected(later)) == sorted(every) and len(every) > 20
    assert max(gpu_run.LIMITS.values()) < 600
