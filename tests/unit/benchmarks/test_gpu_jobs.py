"""Jobs of the GPU benchmarks: limits, errors, what is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import gpu_jobs

JOB = """
import subprocess, sys, time
print("working", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setattr(gpu_jobs, "ROOT", tmp_path)


def wait_for_the_end_of_the_child(folder: Path) -> None:
    process = Path("/proc") / (folder / "child").read_text()
    deadline = time.monotonic() + 10
    while process.exists() and "\nState:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < deadline, "the child of the job is still there"
        time.sleep(0.02)


def test_a_job_that_runs_into_its_limit_ends_with_all_that_it_started(tmp_path: Path) -> None:
    found = gpu_jobs.run(["job"], limit=2)
    assert found == {"error": "working\nno result after 2 s"}
    wait_for_the_end_of_the_child(tmp_path)
