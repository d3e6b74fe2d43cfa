"""Slurm's files, on a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import Run, assert_same_curve, by_step, settings, wait_for_step
from hosts import Hosts
from launchers import json_in
from slurm import Slurm

STEPS = 40
FILES = {"slurm": "torchrun", "slurm_ranks": "srun"}


@pytest.fixture
def slurm(hosts: Hosts, tmp_path: Path) -> Slurm:
    return Slurm(hosts, tmp_path / "slurm")


def submit(
    slurm: Slurm, name: str, run: Path, steps: int, *options: str, strategy: str = "fsdp"
) -> str:
    words = [f"examples/clusters/{name}.sbatch", *settings(run, steps)]
    more = [f"--output={run.parent}/job.log", "--ntasks-per-node=1", "--export=ALL", *options]
    return slurm.submit(*more, *words, environment={"STRATEGY": strategy, "PROCESSES": "1"})


@pytest.mark.parametrize("name", FILES)
def test_two_nodes_learn_what_one_process_learns(
    name: str, slurm: Slurm, tmp_path: Path, one_process: Run
) -> None:
    run = tmp_path / "run"
    job = submit(slurm, name, run, STEPS)
    slurm.wait(job, "COMPLETED", "FAILED")
    assert slurm.state(job) == ("COMPLETED", "0:0"), (tmp_path / "job.log").read_text()[-6000:]
    plan = json_in(run / "plan.json")
    assert (plan["launcher"], plan["world_size"], plan["strategy"]) == (FILES[name], 2, "fsdp")
    assert_same_curve(run, one_process(STEPS))


@pytest.mark.parametrize("name", FILES)
def test_a_job_whose_time_is_over_is_saved_and_goes_on(
    name: str, slurm: Slurm, tmp_path: Path, one_process: Run
) -> None:
    """The warning that Slurm sends two minutes before the end, sent now."""
    run, steps = tmp_path / "run", 300
    job = submit(slurm, name, run, steps, strategy="ddp")
    wait_for_step(run, 30)
    slurm.ask("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(job, "PENDING")
    reached = max(by_step(run))
    log = (tmp_path / "job.log").read_text()
    assert reached < steps and f"stopped at step {reached} of {steps}" in log, log[-6000:]
    assert (run / f"checkpoints/step-{reached:08}").is_dir(), "what was trained was saved"
    slurm.ask(
        "scontrol", "update", f"JobId={job}", "StartTime=now"
    )  # it would wait for two minutes
    slurm.wait(job, "COMPLETED", "FAILED")
    assert slurm.state(job) == ("COMPLETED", "0:0"), (tmp_path / "job.log").read_text()[-6000:]
    assert_same_curve(run, one_process(steps))
