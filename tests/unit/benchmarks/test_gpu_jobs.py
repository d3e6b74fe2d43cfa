"""Jobs of the GPU benchmarks: limits, errors, what is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import ROOT

from benchmarks import gpu_jobs

JOB = """
import argparse, json, os, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--out"); parser.add_argument("how")
args = parser.parse_args()
rank = os.environ.get("RANK", "0")
if args.how == "ranks" and rank == "0":
    json.dump({name: os.environ[name] for name in ("WORLD_SIZE", "MASTER_PORT")}, open(args.out, "w"))
if args.how == "fails" and rank == "1":
    sys.exit("no memory")
if args.how in ("hangs", "fails"):
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


def test_rank_0_leaves_the_result() -> None:
    found = gpu_jobs.run(["job", "ranks"], limit=60, ranks=2)
    assert found["WORLD_SIZE"] == "2" and int(found["MASTER_PORT"]) > 0


def test_a_job_that_runs_into_its_limit_ends_with_all_that_it_started(tmp_path: Path) -> None:
    found = gpu_jobs.run(["job", "hangs"], limit=2)
    assert found == {"error": "working\nno result after 2 s"}
    wait_for_the_end_of_the_child(tmp_path)


def test_a_rank_that_fails_ends_the_others_and_is_named() -> None:
    began = time.monotonic()
    found = gpu_jobs.run(["job", "fails"], limit=60, ranks=2)
    assert "no memory" in found["error"] and found["error"].endswith("exit code 1")
    assert time.monotonic() - began < 30


def test_a_job_without_a_result_says_so() -> None:
    assert gpu_jobs.run(["job", "nothing"], limit=60)["error"].endswith("ended without a result")


def test_no_job_is_begun_without_time_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 10.0, 70.0, 90.0])
    monkeypatch.setattr(gpu_jobs.time, "monotonic", lambda: next(now))
    assert list(gpu_jobs.Budget(100).jobs(["a", "b", "c", "d"], 50)) == [("a", 50), ("b", 30.0)]
    assert capsys.readouterr().out == "not run, the time is spent: c, d\n"


def test_the_starter_ends_its_job_when_it_is_ended(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from benchmarks import gpu_jobs\n"
        f"gpu_jobs.ROOT = Path({str(tmp_path)!r}); gpu_jobs.prepare(rehearse=True)\n"
        "gpu_jobs.run(['job', 'hangs'], limit=600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    starter.terminate()
    assert starter.wait(timeout=30) == 1
    wait_for_the_end_of_the_child(tmp_path)
