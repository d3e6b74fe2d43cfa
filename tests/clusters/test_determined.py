"""Determined's Core API, off its cluster."""

from __future__ import annotations

from pathlib import Path

from cluster_runs import Run, assert_same_curve, by_step, environment, finished, settings
from launchers import free_port, json_in, json_lines

DETERMINED = ("determined==0.38.1", "setuptools<81")
STEPS = 40


def determined(run: Path, storage: Path, *, preempted_at: int = 0, newest: str = "") -> None:
    """Train under Determined's Core API, off the cluster; its master is what the two last arguments
    stand for.
    """
    words = [str(environment("determined", *DETERMINED) / "python"), "-m", "torch.distributed.run"]
    words += [
        "--nproc_per_node=2",
        f"--master_port={free_port()}",
        "tests/workers/determined_master.py",
    ]
    words += [
        "--checkpoint_storage",
        str(storage),
        "--accel_config",
        "examples/clusters/accel_configs/fsdp.yaml",
    ]
    words += [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--resume",
        "auto",
        *settings(run, STEPS),
    ]
    finished(words, PREEMPTED_AT=str(preempted_at), NEWEST=newest)


def test_determined_preempts_a_trial_and_brings_it_back(tmp_path: Path, one_process: Run) -> None:
    """The run's folder is lost in between: what Determined keeps is enough."""
    determined(tmp_path / "first", tmp_path / "storage", preempted_at=20)
    first = by_step(tmp_path / "first")
    kept = {
        path.parents[1].name: path.name
        for path in (tmp_path / "storage").glob("*/checkpoints/step-*")
    }
    assert max(first) == 21 and sorted(kept.values())[-1] == "step-00000021"
    newest = max(kept, key=lambda identity: kept[identity])
    metadata = json_in(tmp_path / "storage" / newest / "metadata.json")
    assert metadata["steps_completed"] == 21
    determined(tmp_path / "second", tmp_path / "storage", newest=newest)
    assert_same_curve(tmp_path / "second", one_process(STEPS))
    told = json_lines(tmp_path / "second/told.jsonl")
    assert [step for step, _ in told] == list(range(22, STEPS + 1))
    assert told[-1][1]["loss"] == by_step(tmp_path / "second")[STEPS]
