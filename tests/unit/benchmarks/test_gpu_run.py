"""One command for a machine with a GPU: what it runs, where results go, how it ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import make_gpu
import pytest
from launchers import ROOT, clean_environment, json_in, json_lines

from benchmarks import gpu_run, gpu_wheels


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("PYTEST_ADDOPTS", None)  # -v there would change what pytest lists


def test_what_was_carried_comes_before_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    site = tmp_path / ".site"
    site.mkdir()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python, expected in ((here, [str(site)]), ("3.9", [])):
        (site / "PYTHON").write_text(python)
        os.environ["PYTHONPATH"] = "/elsewhere"
        gpu_run.set_up(rehearse=True)
        assert os.environ["PYTHONPATH"].split(":") == [*expected, str(tmp_path), "/elsewhere"]
    assert "its packages are for Python 3.9" in capsys.readouterr().out
    assert os.environ["DEVICE"] == "cpu" and os.environ["HF_HUB_OFFLINE"] == "1"


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


@pytest.mark.slow
def test_rows_have_the_memory_of_a_gpu_on_a_fake(tmp_path: Path) -> None:
    """Adam's state and the gradients of a tiny Llama, in the loop by hand and under FSDP2."""
    gpu_run.set_up(rehearse=False, fake_gpus=1)
    [words] = gpu_run.commands("table", tmp_path, rehearse=False)
    words += ["--models", "tiny", "--loops", "hand", "fsdp", "zero3"]
    subprocess.run(words, cwd=ROOT, env=clean_environment(), capture_output=True, check=True)
    rows = json_lines(tmp_path / "table.jsonl")
    assert [row["loop"] for row in rows] == ["cold", "hand", "fsdp", "zero3", "hand"]
    parameters = 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    for row in rows:
        assert row["device"] == "fake GPU" and set(row["losses"]) == {1.0}
        assert row["allocated_gib"] * 2**30 >= 16 * parameters
    assert rows[1]["allocated_gib"] == rows[4]["allocated_gib"]


KILLED = """
import os, sys
sys.modules["hypothesis"] = None  # as where it is not installed

def pytest_runtest_logfinish():
    os._exit(9)
"""


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


def test_a_command_ends_with_what_it_started_and_what_it_said_is_kept() -> None:
    log, began = io.StringIO(), time.monotonic()
    code = "import subprocess, sys; print('first', flush=True); subprocess.run(['sleep', '300'])"
    assert gpu_run.run([sys.executable, "-c", code], log, seconds=1.5) != 0
    assert log.getvalue().startswith("first\n") and "ended after 2 s" in log.getvalue()
    assert time.monotonic() - began < 60


def test_one_cuda_library_of_many_is_carried() -> None:
    kept = [
        name
        for name in ("libbitsandbytes_cuda130.so", "libbitsandbytes_cuda128.so", "functional.py",
                     "libbitsandbytes_rocm70.so", "libbitsandbytes_cpu.so")
        if not gpu_wheels.is_for_another_device(name, "130")
    ]  # fmt: skip
    assert kept == ["libbitsandbytes_cuda130.so", "functional.py", "libbitsandbytes_cpu.so"]


def test_the_checkout_is_small_enough_to_travel_beside_the_packages() -> None:
    assert gpu_wheels.travelling_bytes()["the checkout"] < 16 * 2**20
