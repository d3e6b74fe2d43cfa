"""What the engines of tests/clusters have trained, held to one process, and environments for them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from launchers import ROOT, clean_environment

# What every run is: the digits, a loss of every step, a checkpoint of every tenth.
SETTINGS = ("--log_every", "1", "--save_every", "10", "--keep_last", "3")
Run = Callable[
    [int], dict[int, float]
]  # the losses of one process that trains for a number of steps


def settings(run: Path, steps: int) -> list[str]:
    """Return the arguments of a training of the digits."""
    return ["--output_dir", str(run), "--max_steps", str(steps), *SETTINGS]


def rows(run: Path) -> list[dict[str, float]]:
    """Return the logged steps of a run, as far as they are written."""
    path = run / "metrics.jsonl"
    whole = [
        line
        for line in (path.read_text() if path.exists() else "").splitlines(keepends=True)
        if line[-1] == "\n"
    ]
    return [row for row in map(json.loads, whole) if "loss" in row]


def wait_for_step(run: Path, step: int, *, seconds: float = 120) -> None:
    """Wait until a run has logged a step."""
    end = time.monotonic() + seconds
    while not any(row["step"] >= step for row in rows(run)):
        assert time.monotonic() < end, f"{run} did not come to step {step}"
        time.sleep(0.05)


def by_step(run: Path) -> dict[int, float]:
    """Return the losses of a run by step; each step stands there once, whatever happened in
    between.
    """
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(set(steps)), steps
    return {int(row["step"]): row["loss"] for row in rows(run)}


def assert_same_curve(run: Path, expected: Mapping[int, float]) -> None:
    """Hold a run to the losses of one process."""
    found = by_step(run)
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), abs=2e-5)


def environment(name: str, *packages: str, trains: bool = True) -> Path:
    """Return the folder of programs of an environment with these packages, set up at the first
    call.

    Args:
        trains: the engine runs training itself, so that it sees the packages of this environment
            behind its own.
    """
    folder = ROOT / "build/clusters" / name
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        if trains:
            own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
            beneath = [path for path in sys.path if path.endswith("-packages")]
            # A line of code, since the links of editable packages count there as well.
            lines = [f"import site; site.addsitedir({path!r})" for path in beneath]
            (own / "beneath.pth").write_text("\n".join(lines) + "\n")
        install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, env=clean_environment(), check=True)
        done.write_text("\n".join(packages))
    return folder / "bin"


def finished(
    words: list[str], *, seconds: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root to its end, which must be a good one."""
    environment = clean_environment(variables)
    with psutil.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            out, err = job.communicate(timeout=seconds)
        except BaseException:
            ended(job)
            raise
    assert job.returncode == 0, out[-6000:] + err[-6000:]
    return subprocess.CompletedProcess(words, 0, out, err)


def ended(job: psutil.Process) -> None:
    """End a process and all below it."""
    for process in [job, *job.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
