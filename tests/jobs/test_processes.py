"""How processes begin and end: who starts them, signals, a launcher that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launchers import ROOT, clean_environment, command

from trainer.distributed.launcher import is_alive

DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--epochs", "200", "--log_every", "1"]


def started(words: list[str], output_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*words, *DIGITS, "--output_dir", str(output_dir)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.1)


@pytest.mark.slow
def test_workers_of_a_killed_launcher_save_and_end(tmp_path: Path) -> None:
    with started(command("torchrun", "ddp"), tmp_path / "run") as job:
        wait_for(tmp_path / "run" / "metrics.jsonl")
        workers = psutil.Process(job.pid).children()
        assert len(workers) == 2
        job.kill()
        _, left = psutil.wait_procs(workers, timeout=30)
        alive = [process for process in left if is_alive(process)]
        for process in alive:
            process.kill()
    assert alive == [], "they train on without anybody to end them"
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert "stopped at step" in (tmp_path / "run" / "log.txt").read_text()


def test_ctrl_c_says_where_training_stopped(tmp_path: Path) -> None:
    with started([sys.executable, "examples/train.py"], tmp_path / "run") as job:
        wait_for(tmp_path / "run" / "metrics.jsonl")
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert re.search(r"^stopped at step \d+ of 4600", said, re.MULTILINE)
    assert "done:" not in said


@pytest.mark.slow
def test_accelerates_own_launchers_connect_the_processes(tmp_path: Path) -> None:
    """Both in one process, one after the other."""
    code = "import accelerate; from from_launcher import from_debug_launcher as work\n"
    for name in ("debug_launcher", "notebook_launcher"):
        code += f"accelerate.{name}(work, ({str(tmp_path / name)!r},), num_processes=2)\n"
    environment = clean_environment(
        {"PYTHONPATH": f"{ROOT / 'tests' / 'workers'}:{os.environ.get('PYTHONPATH', '')}"}
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=200, check=True
    )
    for name in ("debug_launcher", "notebook_launcher"):
        assert [(tmp_path / f"{name}-{rank}").read_text() for rank in (0, 1)] == [
            "DistributedDataParallel"
        ] * 2
