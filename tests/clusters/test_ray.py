"""Ray Train, on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
from cluster_runs import Run, assert_same_curve, environment, settings, wait_for_step
from launchers import ROOT, clean_environment

RAY = ("ray[train]==2.60.0",)


def ray_workers(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """List the processes in which Ray trains: they hold the run's files open."""
    found = []
    for process in psutil.process_iter():
        try:
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_ray_goes_on_with_fewer_workers_and_with_more(tmp_path: Path, one_process: Run) -> None:
    """Two workers, of which one is killed; then one worker, killed as well; then two again."""
    run, steps = tmp_path / "run", 300
    python = environment("ray", *RAY) / "python"
    worlds = []
    for workers, end in ((2, 100), (1, 200), (2, None)):
        words = [str(python), "examples/clusters/ray_train.py", "--workers", str(workers), "--max_failures", "0"]
        words += ["--storage", str(tmp_path / "ray"), "--config", "examples/configs/digits_cnn.yaml"]
        log = (tmp_path / f"{len(worlds)}.log").open("w+")
        job = subprocess.Popen(
            [*words, *settings(run, steps)],
            cwd=ROOT, env=clean_environment({"RAY_TRAIN_V2_ENABLED": "1"}), stdout=log, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        if end is not None:
            wait_for_step(run, end)
            ray_workers(job)[0].send_signal(signal.SIGKILL)
        code = job.wait(300)
        log.seek(0)
        assert (code == 0) == (end is None), log.read()[-8000:]
        log.close()
        worlds.append(json.loads((run / "plan.json").read_text())["world_size"])
    assert worlds == [2, 1, 2]
    assert_same_curve(run, one_process(steps))
