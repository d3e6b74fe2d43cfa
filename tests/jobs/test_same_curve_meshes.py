"""Groups of FSDP2 (HSDP) have the same curve, and share their checkpoints.

| promised | strategies and worlds | tests |
|---|---|---|
| Groups have the curve of one process, and resume from anywhere | HSDP on 4, FSDP2 on 2, one process | test_two_groups_of_two_have_the_curve_of_one_process_and_share_its_checkpoints |
| Groups whose copies drift apart are not saved | HSDP on 4 | test_groups_that_drift_apart_are_not_saved |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from launchers import Job, command, run
from small_examples import digits

# Groups of FSDP2


DIGITS = digits(steps=4, warmup_steps=2)
BATCH = ["--global_batch_size", "64", "--micro_batch_size", "8", "--save_every", "2"]
PROCESSES = {"single": 0, "fsdp": 2, "hsdp": 4}


def train_digits(folder: Path, how: str, *more: str, launcher: str = "ranks") -> Job:
    return digits_job(folder, how, *more, launcher=launcher).ok()


def digits_job(folder: Path, how: str, *more: str, launcher: str = "ranks") -> Job:
    words = command(launcher, how, world=PROCESSES[how])
    if launcher == "accelerate":
        words[
            words.index("--num_processes") : words.index("--num_processes") + 2
        ] = []  # the file says it
    return run([*words, *DIGITS, *BATCH, *more], folder)


def assert_equal(found: Sequence[float], wanted: Sequence[float]) -> None:
    assert found == pytest.approx(wanted, rel=1e-6) and len(found) == len(wanted)


@pytest.mark.parametrize("launcher", ["ranks", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_two_groups_of_two_have_the_curve_of_one_process_and_share_its_checkpoints(
    launcher: str, tmp_path: Path
) -> None:
    alone = train_digits(tmp_path / "single", "single")
    groups = train_digits(tmp_path / "hsdp", "hsdp", launcher=launcher)
    assert groups.plan["fsdp"]["dp_replicate_size"] == 2 and groups.plan["world_size"] == 4
    assert groups.plan["distributed_type"] == "FSDP"
    assert_equal(groups.losses, alone.losses)
    for source, how in (("hsdp", "fsdp"), ("single", "hsdp")):
        checkpoint = tmp_path / source / "checkpoints" / "step-00000002"
        resumed = train_digits(tmp_path / f"{source}_{how}", how, "--resume", str(checkpoint))
        assert_equal(resumed.losses, alone.losses[2:])
    assert_written_once(groups, alone)


def test_groups_that_drift_apart_are_not_saved(tmp_path: Path) -> None:
    """A callback changes the weights by numbers that each process draws for itself."""
    job = digits_job(tmp_path, "hsdp", "--callbacks", '["tests.workers.unlike:Drifts"]')
    said = r"rank 2: the checksum of \S+ is \w{16}, rank 0: \w{16}: code has changed"
    assert job.code != 0 and re.search(said, job.err), job.err[-3000:]
    assert not list(tmp_path.glob("checkpoints/step-*"))


def assert_written_once(groups: Job, alone: Job) -> None:
    """The ranks of all groups write equal parts, and together no more than one process, but for
    headers.
    """
    found = {}
    for job in (groups, alone):
        files = sorted(job.output_dir.glob("checkpoints/step-00000002/rank-*.safetensors"))
        found[len(files)] = [path.stat().st_size for path in files]
    assert found.keys() == {1, 4} and sum(found[4]) < found[1][0] + 4 * 40_000
    assert max(found[4]) < 2 * min(found[4])
