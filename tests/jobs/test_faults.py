"""A rank that dies or stands still is named by another one; the job ends, and is gone on with."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from launchers import Job, command, run

# The fault comes in step 8, or the evaluation at 7: the checkpoint of step 3 is complete since the save at 6.
ARGUMENTS = [
    "--config", "examples/configs/digits_cnn.yaml", "--task", "tests.workers.faults:Faulty", "--warmup_steps", "0",
    "--max_steps", "12", "--log_every", "1", "--save_every", "3", "--eval_every", "7", "--keep_last", "9",
]  # fmt: skip
GONE, STOPPED, STILL = "is gone without a word", "is stopped, or its machine is", "stands still"
HUNG = "nothing in the job went on for 10 s"


def train(launcher: str, strategy: str, folder: Path, *arguments: str, **settings: object) -> Job:
    settings = {"stamp": folder / "stamp", **settings}
    typed = [word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))]
    words = [*command(launcher, strategy), *ARGUMENTS, *typed, *arguments]
    return run(words, folder / "run", environment={"PYTHONFAULTHANDLER": ""})  # which would take crashes to stderr


def quick_or_slow(*cases: tuple[str, ...]) -> list[object]:
    """The first with the quick tests."""
    return [pytest.param(*case, marks=pytest.mark.slow if at else []) for at, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("launcher", "strategy", "fault", "at", "rank", "said"),
    quick_or_slow(
        ("torchrun", "ddp", "aborts", "step", "1", GONE),
        ("torchrun", "fsdp", "stopped", "step", "0", STOPPED),
        ("accelerate", "zero1", "killed", "step", "1", GONE),
        ("deepspeed", "zero2", "killed", "step", "0", GONE),  # which holds the store
        ("deepspeed", "zero3", "killed", "save", "1", GONE),
        ("accelerate", "fsdp", "killed", "evaluation", "1", GONE),
        ("torchrun", "zero3", "killed", "export", "0", GONE),
        ("torchrun", "ddp", "exits", "step", "1", "left with SystemExit"),
        ("torchrun", "ddp", "vanishes", "step", "1", GONE),
        ("deepspeed", "zero1", "stopped", "step", "1", STOPPED),
        ("accelerate", "fsdp", "stopped", "save", "1", STOPPED),
        ("torchrun", "ddp", "waits", "step", "1", STILL),
        ("torchrun", "zero3", "waits", "evaluation", "0", STILL),
        ("accelerate", "ddp", "loader", "data", "1", STILL),
        ("torchrun", "fsdp", "meets alone", "step", "1", "waits in another call than others"),
    ),
)
def test_a_rank_that_is_lost_is_named_and_the_run_goes_on(
    launcher: str, strategy: str, fault: str, at: str, rank: str, said: str, tmp_path: Path
) -> None:
    job = train(launcher, strategy, tmp_path, fault=fault, at=at, rank=rank)
    seconds = time.time() - float((tmp_path / "stamp").read_text()) if (tmp_path / "stamp").exists() else 0.0
    assert job.code != 0
    named = re.search(rf"^rank {rank} {said}.*$", job.err, re.MULTILINE)
    assert named, job.err[-4000:]
    assert (HUNG in named[0]) == (fault not in ("aborts", "killed", "exits", "vanishes"))
    assert re.search(rf"^{rank} +\S+ +\d+ +\d+ +(set-up|training|data|evaluation|saving) ", job.err, re.MULTILINE)
    assert "FAILED" in job.err or launcher == "deepspeed"
    assert f"to go on from {job.output_dir / 'checkpoints'}/step-000000" in job.err
    assert " --resume auto" in job.err
    assert named[0] in (job.output_dir / "log.txt").read_text() or HUNG not in named[0]
    assert seconds < 60, "the launcher did not have to wait for a time-out"
    if fault == "aborts":
        assert re.search(r'^  File ".*faults.py", line \d+ in _fail$', job.err, re.MULTILINE)

    resumed = train(launcher, strategy, tmp_path, "--resume", "auto").ok()
    unbroken = train("ranks", strategy, tmp_path / "unbroken").ok()
    assert [row["step"] for row in resumed.rows if "loss" in row] == list(range(1, 13))
    assert resumed.losses == unbroken.losses
    assert resumed.evaluation == unbroken.evaluation


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["busy", "asleep on the network"])
def test_a_rank_that_takes_its_time_is_let_alone(fault: str, tmp_path: Path) -> None:
    """Others wait for it twice as long as a rank may stand still."""
    train("torchrun", "ddp", tmp_path, "--hang_seconds", "5", fault=fault, busy_seconds=12).ok()


@pytest.mark.slow
def test_without_a_limit_a_rank_may_wait(tmp_path: Path) -> None:
    train("torchrun", "ddp", tmp_path, "--hang_seconds", "null", fault="sleeps", busy_seconds=14).ok()
