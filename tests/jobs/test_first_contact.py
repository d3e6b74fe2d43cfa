"""The first commands on a machine with GPUs: emulated, so that devices are counted but none is
there to compute on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launchers import BIN, HIDE_GPUS, ROOT, clean_environment, command, run

from trainer.commands import cli

TINY = ["--config", "examples/configs/digits_cnn.yaml", "--max_steps", "2", "--warmup_steps", "1"]


def with_gpus(count: int) -> dict[str, str]:
    """Return an environment in which Python counts GPUs, which the tests have hidden from this
    process.
    """
    path = os.pathsep.join(
        [str(ROOT / "tests" / "support" / "forged_gpus"), os.environ.get("PYTHONPATH", "")]
    )
    shown = {name: value for name, value in clean_environment().items() if name not in HIDE_GPUS}
    return shown | {"PYTHONPATH": path, "FORGED_GPUS": str(count)}


def ask(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("gpus", "processes"), [(0, 2), (1, 1), (8, 2)])
def test_make_train_starts_as_many_processes_as_the_machine_takes(
    gpus: int, processes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what it starts is in order there: the batch can be divided, and no process is without a
    GPU.
    """
    make = ["make", "-n", "--assume-old", ".venv/installed", f"BIN={BIN}", "train"]
    told = ask(make, with_gpus(gpus))
    assert f"--config_file accel_configs/ddp.yaml --num_processes {processes} " in told
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert cli.main(["check", "accel_configs/ddp.yaml", *TINY, "--processes", str(processes)]) == 0
    said = capsys.readouterr().out
    assert (
        f"device      {'cuda' if gpus else 'cpu'}" in said and f"world size  {processes}\n" in said
    )


def test_tests_rehearse_beside_gpus() -> None:
    one = "tests/unit/test_loop.py::test_fit_works_in_a_thread"
    ask([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one], with_gpus(2))


@pytest.mark.slow
def test_deepspeeds_launcher_rehearses_beside_gpus(tmp_path: Path) -> None:
    environment = with_gpus(2) | HIDE_GPUS
    job = run(
        [*command("deepspeed", "zero2"), *TINY], tmp_path / "run", environment=environment
    ).ok()
    assert (job.plan["device"], job.plan["rehearsal"], job.plan["world_size"]) == ("cpu", True, 2)
