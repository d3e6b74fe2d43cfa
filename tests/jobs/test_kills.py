"""SIGKILL at any moment, to all processes or to one rank: a checkpoint is always there, and the end
is the same.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from launchers import ROOT, clean_environment, command

from trainer.checkpoint import discover

STEPS = 120
JOB = [
    "--task", "tests.workers.resuming:Odd", "--task_settings.dropout", "0.2",
    "--max_steps", str(STEPS), "--log_every", "1",
    "--global_batch_size", "24", "--micro_batch_size", "12", "--lr", "0.01", "--schedule", "linear", "--resume", "auto",
    "--save_every", "2", "--keep_last", "1", "--keep_every", "50",
]  # fmt: skip


def start(run: Path) -> subprocess.Popen[bytes]:
    words = [*command("torchrun", "ddp"), *JOB, "--output_dir", str(run)]
    return subprocess.Popen(
        words, cwd=ROOT, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def ranks_of(launcher: psutil.Process) -> list[psutil.Process]:
    """The training processes themselves, below the launcher."""
    return [child for child in launcher.children(recursive=True) if "--resume" in child.cmdline()]


def kill_all(pid: int) -> None:
    """The launcher first, so that it ends nobody itself; its ranks have sessions of their own."""
    launcher = psutil.Process(pid)
    everyone = [launcher, *launcher.children(recursive=True)]
    for process in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everyone[1:], timeout=60)


def strike(job: subprocess.Popen[bytes], draw: random.Random) -> bool:
    """Kill all processes of a job, or one rank; False if it has come to its end."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ranks = ranks_of(psutil.Process(job.pid))
        if job.poll() is None and ranks and draw.random() < 0.5:
            draw.choice(ranks).kill()  # the launcher ends the others
            return True
        if job.poll() is None:
            kill_all(job.pid)
            return True
    return False


def killed_once(run: Path, draw: random.Random) -> bool:
    """Start the job, kill it at some moment of its training; True if it had come to its end."""

    def written() -> int:
        return (run / "metrics.jsonl").stat().st_size if (run / "metrics.jsonl").exists() else 0

    before, job = written(), start(run)
    while job.poll() is None and written() == before:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.4))
    killed = strike(job, draw)
    job.wait(timeout=120)
    assert killed or job.returncode == 0, "nobody killed it, and it failed"
    return job.returncode == 0


def check_kills(times: int, folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole, run = folder / "whole", folder / "run"
    assert start(whole).wait(timeout=120) == 0
    newest = kills = 0
    while kills < times:
        finished = killed_once(run, draw)
        kills += not finished
        found = [discover.verify(one) for one in discover.listing(run / "checkpoints")]
        assert [one.problem for one in found if one.problem] == [], "what has a name is whole"
        reached = max((one.step for one in found), default=0)
        assert reached >= newest, (
            f"kill {kills}: step {newest} was there, and now {reached} is the newest"
        )
        newest = reached
        if finished:
            check_end(whole, run)
            shutil.rmtree(run)  # there are kills left: from the beginning again
            newest = 0
    assert start(run).wait(timeout=120) == 0
    check_end(whole, run)


def check_end(whole: Path, run: Path) -> None:
    assert losses(run) == losses(whole), "each step once, as in the unbroken run"
    ours, theirs = (path / "model" / "model.safetensors" for path in (whole, run))
    assert ours.read_bytes() == theirs.read_bytes()
    assert [one.step for one in discover.listing(run / "checkpoints")] == [STEPS, 100, 50]


@pytest.mark.slow
def test_a_kill_of_all_processes(tmp_path: Path) -> None:
    check_kills(1, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_three_hundred_kills(tmp_path: Path) -> None:
    check_kills(300, tmp_path, seed=2)
