"""How jobs end: finished ones with 0, every time; failed ones never, and with the cause as the last
error.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from digits_cnn import DigitsCNN
from launchers import ROOT, STRATEGIES, Job, clean_environment, command, run, some_quick

from trainer import load_export

DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1", "--warmup_steps", "0"]
TINY = [*DIGITS, "--max_steps", "2"]


def train(launcher: str, strategy: str, output_dir: Path, *arguments: str) -> Job:
    return run([*command(launcher, strategy), *arguments], output_dir)


def tracebacks(job: Job) -> list[str]:
    """The ranks that show a traceback of their own, in the order in which they do."""
    return re.findall(r"^(rank \d+): Traceback", job.err, flags=re.MULTILINE)


# A rank fails


@pytest.mark.parametrize(
    ("launcher", "strategy", "rank"),
    [
        ("accelerate", "ddp", 1),
        pytest.param("torchrun", "fsdp", 0, marks=pytest.mark.slow),
        # The rank that held the store is gone, and the other has nowhere to ask.
        pytest.param("deepspeed", "zero2", 0, marks=pytest.mark.slow),
        pytest.param("deepspeed", "zero2", 1, marks=pytest.mark.slow),
    ],
)
def test_the_first_error_is_the_last_thing_to_read(
    launcher: str, strategy: str, rank: int, tmp_path: Path
) -> None:
    task = ["--task", "tests.workers.failing:FailsOnOneRank", "--task_settings.bad_rank", str(rank)]
    job = train(launcher, strategy, tmp_path / "run", *DIGITS, "--max_steps", "40", *task)
    assert job.code == 1
    assert [row["step"] for row in job.rows] == [1, 2], "the third step fails"
    assert tracebacks(job) == [f"rank {rank}"]
    cause = f"RuntimeError: the cat sat on rank {rank}"
    ours, _, report = job.err.partition(f"\n{cause}\n")
    assert cause not in ours
    if launcher == "deepspeed":
        assert report == "", "nothing comes after the cause"
    else:
        # The launcher's report ends with the root cause, which the rank left in its error file.
        last = report.rpartition("Root Cause (first observed failure):")[2]
        assert f"rank      : {rank} " in last
        assert [line.strip() for line in last.splitlines() if re.match(r"\s*\w+Error", line)] == [
            cause
        ]


@pytest.mark.parametrize(
    ("launcher", "patience", "seconds"),
    [("ranks", 1.0, 12.0), pytest.param("torchrun", 10.0, 20.0, marks=pytest.mark.slow)],
)
def test_a_rank_that_is_stuck_when_another_fails_is_ended(
    launcher: str, patience: float, seconds: float, tmp_path: Path
) -> None:
    """It takes no signal of the launcher, which would kill it after 30 seconds."""
    stamp = tmp_path / "failed"
    task = ["--task", "tests.workers.failing:FailsBesideAStuckRank", "--max_steps", "40"]
    settings = ["--task_settings.patience", str(patience), "--task_settings.stamp", str(stamp)]
    job = train(launcher, "ddp", tmp_path / "run", *DIGITS, *task, *settings)
    assert time.time() - stamp.stat().st_mtime < seconds
    assert job.code == 1 and tracebacks(job) == ["rank 0"]


@pytest.mark.parametrize("strategy", some_quick("fsdp"))
def test_a_loss_that_is_not_a_number_ends_the_job(strategy: str, tmp_path: Path) -> None:
    job = train(
        "torchrun", strategy, tmp_path / "run", *TINY, "--task", "tests.workers.failing:NotANumber"
    )
    line = "step 1: the loss on rank 0 is nan, of samples "
    assert job.code == 1
    ours, _, report = job.err.partition("Traceback")
    assert re.findall(
        rf"^rank [01]: {line}.* of Data.train, and others on rank 1; lower lr", ours, re.MULTILINE
    ), job.err
    assert ours.count(line) == 1 and line in report
    assert job.losses == [None], "JSON has no NaN"
    assert not (tmp_path / "run" / "model").exists()


# A signal asks to stop


def exported(folder: Path) -> bool:
    model = DigitsCNN().build_model()
    load_export(model, folder / "model")
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    task = ["--task", "tests.workers.failing:Terminated", "--max_steps", "40"]
    job = train("torchrun", "zero3", tmp_path / "run", *DIGITS, *task)
    # Sent in step 3; told to the others in the vote after step 4 and known at the next, four steps
    # later at most.
    last = job.rows[-1]["step"]
    assert 4 < last <= 8 and not any("eval/loss" in row for row in job.rows)
    assert job.code == 1, "torchrun gives 1 for whatever its ranks give"
    cause = job.err.rpartition("Root Cause")[2]
    assert re.search(r"exitcode  : 143 ", cause), job.err
    assert f"stopped by SIGTERM at step {last} of 40; everything up to there was written" in cause
    assert tracebacks(job) == []
    assert exported(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [
        f"step-{last:08}"
    ]


@pytest.mark.slow  # each rank gets it as the one in the test before
def test_a_signal_to_the_launcher_stops_the_job(tmp_path: Path) -> None:
    """As a scheduler does it: the launcher hands the signal on to every rank."""
    folder = tmp_path / "run"
    words = [*command("torchrun", "ddp"), *DIGITS, "--epochs", "1000", "--output_dir", str(folder)]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        while not (folder / "metrics.jsonl").exists():
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(0.1)
        launcher.send_signal(signal.SIGTERM)
        err = launcher.communicate(timeout=60)[1]
    job = Job(code=launcher.returncode, out="", err=err, output_dir=folder)
    assert job.code != 0 and tracebacks(job) == []
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [
        f"step-{job.rows[-1]['step']:08}"
    ]
    assert exported(folder)


# A finished job


def repeated(strategy: str, times: int, folder: Path) -> list[int]:
    return [
        train("torchrun", strategy, folder / str(number), *TINY).code for number in range(times)
    ]


@pytest.mark.slow  # that it is 0 once, each job shows that a quick test starts
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_finished_jobs_exit_0_twenty_times(strategy: str, tmp_path: Path) -> None:
    assert repeated(strategy, 20, tmp_path) == [0] * 20
