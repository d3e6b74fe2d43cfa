"""A rank that dies or stands still is named by another one. The job ends, and can be resumed.

| promised | strategies and worlds | tests |
|---|---|---|
| A rank that is lost is named, and the run resumes to the same end | DDP on 2; 15 faults under all strategies and launchers (nightly) | test_a_rank_that_is_lost_is_named_and_the_run_goes_on |
| A stopped rank is named and the job ends within 15 s, wherever it is | ZeRO-3 on 2; all on 2 (nightly) | test_a_stopped_rank_ends_the_job_within_15_seconds |
| So are two of three that are stopped together | DDP on 3 | test_two_stopped_ranks_are_seen_by_the_third |
| A rank that takes its time is let alone | DDP on 2 (nightly) | test_a_rank_that_takes_its_time_is_let_alone |
| A run that fails by itself or is asked to stop goes on | all on 2, under all launchers (nightly) | test_a_run_that_fails_or_is_stopped_goes_on |
| A disk that is full or read-only is named | DDP, FSDP2, ZeRO-3 on 2 (nightly) | test_a_disk_that_takes_no_more_is_named_and_the_run_goes_on |
| A tracker that lost its server costs time and nothing else | FSDP2 on 2 (nightly) | test_a_tracker_whose_server_is_gone_costs_time_and_nothing_else |
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from disks import small_disk
from launchers import Job, command, launch_file, options, run

# The fault comes in step 8, or the evaluation at 7: the checkpoint of step 3 is complete since the
# save at 6.
ARGUMENTS = [
    "--config", "examples/configs/digits_cnn.yaml", "--task", "tests.workers.faults:Faulty", "--warmup_steps", "0",
    "--log_every", "1", "--save_every", "3", "--eval_every", "7", "--evaluation_batch_size", "4", "--keep_last", "9",
    "--sanity_evaluation", "false",
]  # fmt: skip
GONE, STOPPED = "is gone: killed, out of memory", "is stopped"
STILL = "no rank has moved for"
# Two ranks that stand still are told after half of it.
SHORT = ["--timeout_minutes", "0.4"]
FULL = "^rank 0: .*/run/.*: cannot be written: No space left on device; once the path can be written, resume: auto continues"
NOT_SAVED = "the checkpoint of step 6 was not saved: .*"


def train(
    launcher: str,
    strategy: str,
    folder: Path,
    *arguments: str,
    steps: int = 12,
    world: int = 2,
    inside: Sequence[str] = (),
    **settings: object,
) -> Job:
    late = {"after": 261} if settings.get("at") == "item" else {}
    settings = {"stamp": folder / "stamp", **late, **settings}
    words = [
        *inside,
        *command(launcher, strategy, world),
        *ARGUMENTS,
        "--max_steps",
        str(steps),
        *options(settings, "task_settings."),
        *arguments,
    ]
    return run(
        words, folder / "run", environment={"PYTHONFAULTHANDLER": ""}
    )  # which would take crashes to stderr


def unbroken(strategy: str, folder: Path, steps: int = 12) -> Job:
    return _unbroken(strategy, folder, steps)


@cache  # which tells calls apart that leave a default out
def _unbroken(strategy: str, folder: Path, steps: int) -> Job:
    return train("ranks", strategy, folder / f"{strategy}-{steps}", steps=steps).ok()


def assert_same_end(resumed: Job, whole: Job, stopped_at: int | None = None) -> None:
    """A run that a signal stops at a step has no time to evaluate, and goes on without."""
    assert [row["step"] for row in resumed.rows if "loss" in row] == list(
        range(1, len(whole.losses) + 1)
    )
    assert resumed.losses == whole.losses
    ours, theirs = (
        [row for row in evaluations(job) if row["step"] != stopped_at] for job in (resumed, whole)
    )
    assert ours == theirs
    resumed_file, file = (job.output_dir / "model/model.safetensors" for job in (resumed, whole))
    assert resumed_file.read_bytes() == file.read_bytes()


def evaluations(job: Job) -> list[dict[str, float]]:
    return [
        {k: v for k, v in row.items() if k == "step" or k.startswith("eval/")}
        for row in job.rows
        if "eval/loss" in row
    ]


def quick_or_slow(*cases: tuple[str, ...]) -> list[object]:
    """The first with the quick tests."""
    return [
        pytest.param(*case, marks=pytest.mark.slow if at else []) for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize(
    ("launcher", "strategy", "fault", "at", "rank", "said"),
    quick_or_slow(
        ("ranks", "ddp", "aborts", "step", "1", GONE),
        ("torchrun", "ddp", "aborts", "step", "1", GONE),
        ("torchrun", "fsdp", "stopped", "step", "0", STOPPED),
        ("accelerate", "zero1", "killed", "step", "1", GONE),
        ("deepspeed", "zero2", "killed", "step", "0", GONE),  # which holds the store
        ("deepspeed", "zero3", "killed", "save", "1", GONE),
        ("accelerate", "fsdp", "killed", "evaluation", "1", GONE),
        ("torchrun", "zero3", "killed", "export", "0", GONE),
        ("torchrun", "ddp", "exits", "step", "1", GONE),
        ("torchrun", "ddp", "vanishes", "step", "1", GONE),
        ("deepspeed", "zero1", "stopped", "step", "1", STOPPED),
        ("accelerate", "fsdp", "stopped", "save", "1", STOPPED),
        ("torchrun", "ddp", "waits", "step", "1", STILL),
        ("torchrun", "zero3", "waits", "evaluation", "0", STILL),
        ("accelerate", "ddp", "waits", "item", "1", STILL),
        ("torchrun", "fsdp", "meets alone", "step", "1", STILL),
    ),
)
def test_a_rank_that_is_lost_is_named_and_the_run_goes_on(
    launcher: str,
    strategy: str,
    fault: str,
    at: str,
    rank: str,
    said: str,
    tmp_path: Path,
    folder: Path,
) -> None:
    job = train(launcher, strategy, tmp_path, *SHORT, fault=fault, at=at, rank=rank)
    seconds = (
        time.time() - float((tmp_path / "stamp").read_text())
        if (tmp_path / "stamp").exists()
        else 0.0
    )
    assert job.code != 0
    who = rf"rank {rank} \(process \d+ on .+\) " if said != STILL else ""
    named = re.search(rf"^rank \d: {who}{said}.*$", job.err, re.MULTILINE)
    assert named, job.err[-4000:]
    assert (
        re.search(
            r"^The ranks: ranks? .*: step \d+, .+, call \d+ of the model, .+", job.err, re.MULTILINE
        )
        or said == STILL
    )
    assert "FAILED" in job.err or launcher in ("deepspeed", "ranks")
    assert f"to resume from {job.output_dir / 'checkpoints'}/step-000000" in job.err
    assert " --resume auto" in job.err
    assert seconds < 60, "the launcher did not have to wait for a time-out"
    if fault == "aborts":
        assert re.search(r'^  File ".*faults.py", line \d+ in _fail$', job.err, re.MULTILINE)
    if said == STILL:
        assert "most recent call first" in job.err, "the stacks of all threads"

    if launcher == "ranks":
        return  # the nightly cases go on to the end, which takes two more jobs

    resumed = train(launcher, strategy, tmp_path, "--resume", "auto").ok()
    assert_same_end(resumed, unbroken(strategy, folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy", "fault", "at", "workers", "steps", "said"),
    [
        ("torchrun", "fsdp", "raises", "step", 0, 12, "RuntimeError: the cat sat on the keyboard"),
        (
            "deepspeed",
            "zero2",
            "nan",
            "step",
            0,
            12,
            "step 8: the loss on rank 1 is nan, of samples ",
        ),
        (
            "accelerate",
            "zero3",
            "killed",
            "item",
            1,
            12,
            r"worker \(pid \d+\) is killed by signal: Killed",
        ),
        ("torchrun", "zero1", "SIGTERM", "step", 0, 60, "stopped by SIGTERM at step "),
        (
            "torchrun",
            "zero2",
            "SIGTERM, slowly",
            "evaluation",
            0,
            12,
            "stopped by SIGTERM at step 7",
        ),
        ("accelerate", "ddp", "SIGTERM to the launcher", "step", 0, 60, ""),
        ("torchrun", "fsdp", "SIGTERM to all processes", "step", 1, 60, ""),
    ],
)
def test_a_run_that_fails_or_is_stopped_goes_on(
    launcher: str,
    strategy: str,
    fault: str,
    at: str,
    workers: int,
    steps: int,
    said: str,
    tmp_path: Path,
    folder: Path,
) -> None:
    loaders = ["--workers", str(workers)]
    job = train(launcher, strategy, tmp_path, *loaders, steps=steps, fault=fault, at=at)
    seconds = time.time() - float((tmp_path / "stamp").read_text())
    assert job.code != 0 and seconds < 60
    assert re.search(said, job.err), job.err[-4000:]
    assert "The job ends." not in job.err, "it was no loss of a rank"
    stopped_at = job.rows[-1]["step"] if fault.startswith("SIGTERM") else None
    resumed = train(launcher, strategy, tmp_path, *loaders, "--resume", "auto", steps=steps).ok()
    assert_same_end(resumed, unbroken(strategy, folder, steps), stopped_at)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy", "fault", "at", "undo", "said"),
    [
        # The save that was begun two steps before may meet it first.
        ("torchrun", "ddp", "fills the disk", "step", "rm {}/filled", f"{FULL}|{NOT_SAVED}No space left"),
        ("accelerate", "fsdp", "fills the disk", "save", "rm {}/filled", FULL),
        # Rank 0 may write its row before it waits for the rank that waits.
        ("torchrun", "fsdp", "fills the disk and waits", "step", "rm {}/filled", f"{STILL}|{FULL}"),
        (
            "deepspeed", "zero3", "is read-only", "step", "umount {}/run/checkpoints",
            f"{NOT_SAVED}Read-only file system",
        ),
    ],
)  # fmt: skip
def test_a_disk_that_takes_no_more_is_named_and_the_run_goes_on(
    launcher: str,
    strategy: str,
    fault: str,
    at: str,
    undo: str,
    said: str,
    tmp_path: Path,
    folder: Path,
) -> None:
    with small_disk(tmp_path / "disk") as (inside, seen):
        job = train(
            launcher, strategy, tmp_path / "disk", *SHORT, inside=inside, fault=fault, at=at
        )
        seconds = time.time() - float((seen / "stamp").read_text())
        assert job.code != 0 and seconds < 60
        assert re.search(said, job.err, re.MULTILINE) and "rank 0: Traceback" not in job.err, (
            job.err[-4000:]
        )
        subprocess.run([*inside, *undo.format(tmp_path / "disk").split()], check=True)
        train(launcher, strategy, tmp_path / "disk", "--resume", "auto", inside=inside).ok()
        assert_same_end(replace(job, output_dir=seen / "run"), unbroken(strategy, folder))


@pytest.mark.slow
def test_a_tracker_whose_server_is_gone_costs_time_and_nothing_else(
    tmp_path: Path, folder: Path
) -> None:
    """Its client tries for longer than a rank may stand still, while the other rank waits in a
    collective.
    """
    fault = {"fault": "loses the tracker", "at": "step", "rank": "0"}
    job = train("torchrun", "fsdp", tmp_path, "--trackers", "[tensorboard]", **fault).ok()
    told = (
        "tensorboard: did not take step 8 (ConnectionRefusedError: its server is gone); "
        "the tracker gets no more steps, metrics.jsonl has every value"
    )
    assert (job.output_dir / "log.txt").read_text().count(told) == 1
    assert_same_end(job, unbroken("fsdp", folder))


# Layers that ZeRO-3 divides.
WIDE = ["--task_settings.width", "128"]


def assert_stopped(job: Job, said: str, *ranks: str) -> None:
    """A rank has named one of these, and the job ended within 15 seconds."""
    assert job.code != 0
    assert time.time() - float((job.output_dir.with_name("stamp")).read_text()) < 15
    named = re.findall(said + r"rank (\d) \(process \d+ on .+\) is stopped. The job ends.", job.err)
    assert len(named) == 1 and named[0] in ranks, job.err[-3000:]


@pytest.mark.parametrize(
    ("strategy", "at", "after", "rank"),
    quick_or_slow(
        ("zero3", "step", "5", "0"),  # which holds the store
        ("ddp", "step", "3", "1"),
        ("fsdp", "model", "1", "0"),
        ("zero1", "state", "2", "0"),
        ("zero2", "data", "1", "1"),
        ("fsdp", "extras", "1", "0"),
        ("ddp", "end", "1", "1"),
    ),
)
def test_a_stopped_rank_ends_the_job_within_15_seconds(
    strategy: str, at: str, after: str, rank: str, tmp_path: Path
) -> None:
    fault = {"fault": "stopped", "at": at, "after": after, "rank": rank}
    assert_stopped(train("ranks", strategy, tmp_path, *WIDE, **fault), "", rank)


def test_two_stopped_ranks_are_seen_by_the_third(tmp_path: Path) -> None:
    file = launch_file(tmp_path / "ddp.yaml", "ddp", 3)
    batch = ["--global_batch_size", "12", "--micro_batch_size", "4"]
    fault = {"fault": "stopped", "rank": -2, "after": 3}
    job = train("ranks", str(file), tmp_path, *batch, world=3, **fault)
    assert_stopped(job, "(?m)^rank 2: ", "0", "1")


@pytest.mark.slow  # that a call in C is let alone is a unit test's, with a clock of its own
@pytest.mark.parametrize(
    ("fault", "at"),
    [
        ("keeps the lock", "step"),
        ("sleeps", "data"),
        ("sleeps", "item"),
        ("runs a program", "step"),
    ],
)
def test_a_rank_that_takes_its_time_is_let_alone(fault: str, at: str, tmp_path: Path) -> None:
    job = train("ranks", "ddp", tmp_path, fault=fault, at=at, after=1).ok()
    assert ("no rank has moved for" in job.err) == (fault != "keeps the lock")
