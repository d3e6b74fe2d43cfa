"""A rank that is stopped or stuck is named wherever others wait for it; one that is slow is let alone.

| promised | strategies and worlds | tests |
|---|---|---|
| The rank that is stopped or stuck is named, and no other one | all on 2: four places quick, seven nightly | test_a_rank_is_named |
| A loader process that is stopped is named and killed | DDP on 2 | test_a_stopped_loader_process_is_named_and_killed |
| A rank that takes its time is let alone | DDP on 2: one way quick, six nightly | test_a_rank_that_takes_its_time_is_let_alone |
| The process that watches a rank leaves with it | DDP on 2 | test_an_observer_leaves_with_its_rank |

``benchmarks/hangs.py`` does it at random moments, under every strategy.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest
from launchers import Job, command, run, starter_id

ARGUMENTS = [
    "--task", "tests.workers.hanging:Hanging", "--task_settings.width", "500", "--warmup_steps", "0",
    "--micro_batch_size", "4", "--log_every", "1", "--save_every", "2", "--eval_every", "5",
    "--sanity_evaluation", "false",
]  # fmt: skip
STOPPED = "is stopped, or its machine is: it has done nothing for 4 s"
STORE = "is stopped, and holds the store through which the ranks are watched: it has done nothing for 4 s"
STUCK = "stands still: nothing in the job has moved for 4 s"


def train(strategy: str, folder: Path, *arguments: str, steps: int = 12, **settings: object) -> Job:
    typed = [
        word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))
    ]
    words = [
        *command("ranks", strategy),
        *ARGUMENTS,
        "--hang_seconds",
        "4",
        "--max_steps",
        str(steps),
        *typed,
        *arguments,
    ]
    return run(words, folder / "run")


def named(job: Job) -> dict[int, str]:
    told = job.err.partition("the job ends; its ranks:")[2]
    return {
        int(rank): text
        for rank, text in re.findall(r"^rank (\d) (.*) \(hang_seconds\)$", told, re.MULTILINE)
    }


def quick_or_slow(quick: int, *cases: tuple[object, ...]) -> list[object]:
    return [
        pytest.param(*case, marks=pytest.mark.slow if at >= quick else [])
        for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize(
    ("strategy", "does", "at", "after", "rank", "guilty", "said"),
    quick_or_slow(
        5,
        ("ddp", "waits for ever, rank 0 spins", "step", 3, -1, 1, STUCK),
        ("zero3", "is stopped", "step", 5, 1, 1, STOPPED),
        ("fsdp", "is stopped", "model", 1, 0, 0, STORE),
        ("ddp", "waits for ever, rank 0 for it", "step", 3, -1, 1, STUCK),
        ("zero1", "waits for ever", "state", 2, 0, 0, STUCK),
        ("ddp", "is stopped, rank 0 waits for it", "step", 3, -1, 1, STOPPED),
        ("fsdp", "is stopped, rank 0 spins", "step", 3, -1, 1, STOPPED),
        ("ddp", "is stopped in an answer", "step", 3, 1, 1, STOPPED),
        ("zero2", "is stopped", "data", 1, 1, 1, STOPPED),
        ("zero3", "is stopped", "step", 5, 0, 0, STORE),
        ("zero3", "waits for ever", "step", 5, 1, 1, STUCK),
        ("fsdp", "waits for ever", "extras", 1, 0, 0, STUCK),
        ("ddp", "has a group that counts nothing", "step", 3, -1, 1, STOPPED),
    ),
)
def test_a_rank_is_named(
    strategy: str, does: str, at: str, after: int, rank: int, guilty: int, said: str, tmp_path: Path
) -> None:
    stamp = tmp_path / "stamp"
    job = train(strategy, tmp_path, does=does, at=at, after=after, rank=rank, stamp=stamp)
    assert job.code != 0 and time.time() - stamp.stat().st_mtime < 60
    assert {number: text.partition(" s (")[0] for number, text in named(job).items()} == {
        guilty: said
    }, job.err[-3000:]


def test_a_stopped_loader_process_is_named_and_killed(tmp_path: Path) -> None:
    job = train("ddp", tmp_path, "--workers", "1", steps=60, does="stops its loaders")
    assert job.code != 0
    [(rank, text)] = named(job).items()
    said = re.match(
        r"waits for its process (\d+), which is stopped: nothing in the job has moved for 4 s$",
        text,
    )
    assert rank == 1 and said, text
    end = time.monotonic() + 5.0
    while runs(int(said[1])) and time.monotonic() < end:
        time.sleep(0.1)
    assert not runs(int(said[1]))


def runs(pid: int) -> bool:
    """Return whether a process is there and alive: one that was killed may wait to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("does", "at", "arguments"),
    quick_or_slow(
        1,
        ("asks", "step", []),
        ("keeps the lock", "step", []),
        ("reads a pipe", "step", []),
        ("runs a program", "step", []),
        ("sleeps", "data", []),
        ("sleeps", "item", ["--workers", "1"]),
        ("computes", "step", []),
    ),
)
def test_a_rank_that_takes_its_time_is_let_alone(
    does: str, at: str, arguments: list[str], tmp_path: Path
) -> None:
    """Others wait for it for more than twice as long as a rank may stand still."""
    train("ddp", tmp_path, *arguments, does=does, at=at, after=1, seconds=9).ok()


def test_an_observer_leaves_with_its_rank(tmp_path: Path) -> None:
    train("ddp", tmp_path).ok()
    time.sleep(1.0)
    starter = psutil.Process(starter_id())
    assert not [
        child
        for child in starter.children(recursive=True)
        if "observer.py" in " ".join(child.cmdline())
    ]
    left = [
        process for process in psutil.process_iter() if process.ppid() == 1 and _observes(process)
    ]
    assert not left


def _observes(process: psutil.Process) -> bool:
    try:
        return any(
            word.endswith("faults/observer.py") for word in process.cmdline()
        ) and not psutil.pid_exists(int(process.cmdline()[-2]))
    except psutil.Error:
        return False
