"""Ray Train, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
from cluster_runs import Run, assert_same_curve, ended, environment, settings, wait_for_step
from launchers import ROOT, clean_environment, json_in

RAY = ("ray[train]==2.60.0",)


@pytest.mark.timeout(1200)
def test_ray_goes_on_with_fewer_workers_and_with_more(tmp_path: Path, one_process: Run) -> None:
    """Two workers, of which one is killed; then one worker, killed as well; then two again."""
    run, steps = tmp_path / "run", 300
    python = environment("ray", *RAY) / "python"
    worlds = []
    patient = {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"
    }  # a busy machine takes more than the minute it is given
    for workers, end in ((2, 100), (1, 200), (2, None)):
        words = [
            str(python),
            "examples/clusters/ray_train.py",
            "--workers",
            str(workers),
            "--max_failures",
            "0",
        ]
        words += ["--storage", str(tmp_path / "ray"), *settings(run, steps), "--eval_every", "100"]
        log = tmp_path / f"{len(worlds)}.log"
        with log.open("w") as file:
            job = psutil.Popen(
                words,
                cwd=ROOT,
                env=clean_environment(patient),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            if end is not None:
                wait_for_step(run, end, seconds=300)
                trained_by = [
                    one
                    for one in job.children(recursive=True)
                    if "RayTrainWorker" in one.cmdline()[0]
                ]
                assert len(trained_by) == workers
                trained_by[0].kill()
            code = job.wait(300)
        finally:
            if job.is_running():
                ended(job)
                job.wait()
        assert (code == 0) == (end is None), log.read_text()[-8000:]
        worlds.append(json_in(run / "plan.json")["world_size"])
    assert worlds == [2, 1, 2]
    assert_same_curve(run, one_process(steps))
