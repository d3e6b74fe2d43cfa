"""Each launcher on the device: a training that SIGTERM stops and the next launcher goes on with."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import ROOT, clean_environment, command, installed, json_in, launch_file

MORE = 20  # steps before the signal
ARGUMENTS = [
    "--config", "examples/configs/digits_cnn.yaml", "--epochs", "100000", "--warmup_steps", "0",
    "--schedule", "constant", "--lr", "1e-3", "--log_every", "1", "--eval_every", "1000000",
    "--mixed_precision", "bf16", "--resume", "auto",
]  # fmt: skip
Note = Callable[..., None]


def rows(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if "loss" in row]


def stop(words: list[str], run: Path) -> tuple[int, str]:
    """Train some steps, send SIGTERM to the launcher, and return its exit code and errors."""
    before = len(rows(run))
    full = [*words, *ARGUMENTS, "--output_dir", str(run)]
    with subprocess.Popen(
        full,
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        deadline = time.monotonic() + 120
        while len(rows(run)) < before + MORE:
            assert job.poll() is None and time.monotonic() < deadline, job.communicate()[1][-4000:]
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
        err = job.communicate(timeout=90)[1]
    return job.returncode, err


@pytest.mark.skipif(not installed("sklearn"), reason="the digits are scikit-learn's")
def test_each_launcher_stops_at_a_signal_and_the_next_goes_on(
    tmp_path: Path, gpus: int, note: Note
) -> None:
    run, one = tmp_path / "run", gpus == 1
    replicas = launch_file(tmp_path / "ddp.yaml", "ddp", gpus)
    jobs = {
        "python": command("python", "single"),
        "torchrun": command("torchrun", str(replicas), gpus),
        "accelerate": command("accelerate", "fsdp", 1 if one else 2),
    }
    if installed("deepspeed"):
        jobs["deepspeed"] = command("deepspeed", "zero2", gpus)
    last = 0
    for launcher, words in jobs.items():
        begun = time.monotonic()
        code, err = stop(words, run)
        steps = [row["step"] for row in rows(run)]
        plan = json_in(run / "plan.json")
        note(**{launcher: {"strategy": plan["strategy"], "device": plan["device"], "steps": steps[-1] - last,
                           "seconds": round(time.monotonic() - begun, 1)}})  # fmt: skip
        assert code != 0, err[-4000:]
        assert plan["launcher"] == launcher
        assert steps == list(range(1, len(steps) + 1)) and steps[-1] > last, (
            "no step is lost, none comes twice"
        )
        assert (run / "model").is_dir()
        assert (run / f"checkpoints/step-{steps[-1]:08}").is_dir(), "what was trained was saved"
        last = steps[-1]
