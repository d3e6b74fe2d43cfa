"""The tests that need a GPU (make gpu), and their results as one JSON.

DEVICE=cpu rehearses them on the CPU, on GPUS processes (default 2), so that their own code is known
to run. RESULTS names the file of the results, which is written anew after each test: whatever ends
the command, those of the tests before are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, SHOW_GPUS, installed

REHEARSAL = os.environ.get("DEVICE") == "cpu"
OWN = ROOT / "runs/gpu" / ("rehearsal.json" if REHEARSAL else "results.json")
RESULTS = Path(os.environ.get("RESULTS", OWN))
FAKE = "FAKE_GPUS" in os.environ  # benchmarks/gpu_run.py --fake: no values
STARTED = time.time()
# What a package is needed for; the tests without it run.
NEEDED_FOR = {
    "deepspeed": "ZeRO-1, 2 and 3, and the deepspeed launcher",
    "bitsandbytes": "models in 4 bits",
    "peft": "models in 4 bits",
    "sklearn": "the launchers",
}
found: dict[str, Any] = {"tests": {}, "figures": {}, "not_run": []}
for package, what in NEEDED_FOR.items():
    if not installed(package):
        found["not_run"].append(f"{what}: {package} is not installed")
if REHEARSAL:
    found["not_run"].append(
        "waiting for the device, memory of the GPU, NCCL: this is a rehearsal on the CPU"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def gpus() -> Iterator[int]:
    """Show the GPUs, which other tests do not see; yield how many processes train: two where there
    are two GPUs.
    """
    from trainer.launching.request import visible_gpus
    from trainer.text import versions

    with pytest.MonkeyPatch.context() as patch:
        if not REHEARSAL:
            for name, value in SHOW_GPUS.items():
                patch.setenv(name, value) if value is not None else patch.delenv(name)
        visible = visible_gpus()
        if not REHEARSAL and not visible:
            pytest.exit(
                "make gpu needs a GPU; DEVICE=cpu make gpu rehearses the tests on the CPU",
                returncode=2,
            )
        found["machine"] = {"visible": visible, "gpus": named_gpus(), "versions": versions()}
        yield min(2, visible) if not REHEARSAL else int(os.environ.get("GPUS", "2"))


def named_gpus() -> list[str]:
    """Return name and driver of each GPU. A question to torch would start CUDA in this process."""
    if REHEARSAL or FAKE:
        return []
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keep figures of this test for the page."""

    def keep(**figures: Any) -> None:
        found["figures"].setdefault(request.node.name, {}).update(figures)

    return keep


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "failed":
        told = {"outcome": report.outcome, "seconds": round(report.duration, 1)}
        if report.outcome == "failed":
            told["error"] = str(report.longrepr).strip().splitlines()[-1]
        if isinstance(report.longrepr, tuple):  # of a test that skipped itself: file, line, reason
            told["error"] = report.longrepr[2]
        found["tests"][report.nodeid.rpartition("/")[2]] = told
    if report.when == "teardown":
        write_results(complete=False)


def pytest_sessionfinish() -> None:
    if found["tests"]:
        write_results(complete=True)


def write_results(*, complete: bool) -> None:
    """Write what is known by now; a reader sees the file of before or the new one."""
    found.update(
        date=date.today().isoformat(),
        seconds=round(time.time() - STARTED),
        device="cpu" if REHEARSAL else "fake" if FAKE else "cuda",
        complete=complete,
    )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    unfinished = RESULTS.with_suffix(".new")
    unfinished.write_text(json.dumps(found, indent=1) + "\n")
    unfinished.replace(RESULTS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in found["not_run"]:
        terminalreporter.write_line(f"not run: {line}")
