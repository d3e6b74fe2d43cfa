"""Benchmarks that are rehearsed on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import completed


@pytest.fixture
def rehearse() -> Callable[..., str]:
    """Rehearse a program of the benchmarks, which must end well. Return what it printed."""

    def run(program: str, out: Path, *words: str) -> str:
        command = [sys.executable, "-m", f"benchmarks.{program}", "--out", str(out), "--rehearse"]
        done = completed([*command, *words])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
