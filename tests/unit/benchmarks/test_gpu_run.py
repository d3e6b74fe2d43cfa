"""One command for a machine with a GPU: what it runs, where results go, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import make_gpu
import pytest
from launchers import ROOT, json_in

from benchmarks import gpu_run


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("PYTEST_ADDOPTS", None)  # -v there would change what pytest lists


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


KILLED = """
import os, sys
sys.modules["hypothesis"] = None  # as where it is not installed

def pytest_runtest_logfinish():
    os._exit(9)
"""


@pytest.mark.slow
def test_gpu_tests_need_no_packages_of_developers_and_leave_results_when_killed(
    tmp_path: Path,
) -> None:
    gpu_run.set_up(rehearse=True)
    (tmp_path / "killed.py").write_text(KILLED)
    os.environ["RESULTS"] = str(tmp_path / "results.json")
    os.environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    words = [sys.executable, "-m", "pytest", "-p", "killed", "-p", "no:timeout", "-p", "no:cacheprovider"]  # fmt: skip
    done = subprocess.run(
        [*words, "tests/gpu/test_strategies.py", "-k", "repository"],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 9, done.stdout + done.stderr
    results = json_in(tmp_path / "results.json")
    [(name, told)] = results["tests"].items()
    assert name.endswith("test_the_repository_is_what_runs") and told["outcome"] == "passed"
    assert results["complete"] is False and results["device"] == "cpu"
    assert "0 x no GPU, samecurve " in make_gpu.page(results)
