"""A job ends with 0 where it is done, and never where it is not; the cause is the last line.

| promised | strategies and worlds | tests |
|---|---|---|
| The error of the rank that failed first is the last thing to read | DDP on 2 under accelerate launch; torchrun, deepspeed (nightly) | test_the_first_error_is_the_last_thing_to_read |
| A rank that is stuck when another fails is ended | DDP on 2; under torchrun (nightly) | test_a_rank_that_is_stuck_when_another_fails_is_ended |
| A signal stops all ranks after one step, with a checkpoint and a model | ZeRO-3 on 2 | test_a_signal_to_one_rank_stops_all_after_the_same_step |
| Ctrl-C says where training stopped | one process | test_ctrl_c_says_where_training_stopped |
| Ranks whose launcher was killed save and end | DDP on 2 (nightly) | test_workers_of_a_killed_launcher_save_and_end |
| Finished jobs exit with 0 every time, without an alarm, and leave nothing but their run | all on 2; one process, all on 2 and 3 (nightly) | test_a_finished_job_exits_with_0_without_an_alarm_and_leaves_its_run_alone |

``JOBS=1000 pytest tests/jobs/test_exits.py -k without_an_alarm`` is the long form of the last;
docs/faults.md says what was seen.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from digits_cnn import DigitsCNN
from launchers import ROOT, Job, clean_environment, command, layouts, options, run

from trainer import load_export

DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1", "--warmup_steps", "0"]


def train(launcher: str, strategy: str, folder: Path, task: str, **settings: object) -> Job:
    """Train the digits with a task, which leaves a stamp."""
    words = ["--task", f"tests.workers.{task}", "--max_steps", "40"]
    words += options({"stamp": folder / "stamp", **settings}, "task_settings.")
    return run([*command(launcher, strategy), *DIGITS, *words], folder / "run")


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
    fault = {"fault": "raises", "rank": rank, "after": 3}
    job = train(launcher, strategy, tmp_path, "faults:Faulty", **fault)
    assert job.code == 1
    assert [row["step"] for row in job.rows] == [1, 2], "the third step fails"
    assert tracebacks(job) == [f"rank {rank}"]
    cause = "RuntimeError: the cat sat on the keyboard"
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
    job = train(launcher, "ddp", tmp_path, "failing:FailsBesideAStuckRank", patience=patience)
    assert time.time() - (tmp_path / "stamp").stat().st_mtime < seconds
    assert job.code == 1 and tracebacks(job) == ["rank 0"]


# A signal asks to stop


def exported(folder: Path) -> bool:
    model = DigitsCNN().build_model()
    load_export(model, folder / "model")
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    job = train("ranks", "zero3", tmp_path, "faults:Faulty", fault="SIGTERM", after=3)
    # Sent in step 3; told to the others in the vote after step 4 and known at the next, four steps
    # later at most.
    last = job.rows[-1]["step"]
    assert 4 < last <= 8 and not any("eval/loss" in row for row in job.rows)
    assert re.search(rf"^stopped at step {last} of 40", job.out, re.MULTILINE), job.out
    assert job.code == 143
    assert tracebacks(job) == []
    assert exported(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == [f"step-{last:08}"]


# A finished job


# Ctrl-C, and a launcher that is killed


LONG = ["--config", "examples/configs/digits_cnn.yaml", "--epochs", "200", "--log_every", "1"]


def started(words: list[str], output_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*words, *LONG, "--output_dir", str(output_dir)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.1)


@pytest.mark.slow
def test_workers_of_a_killed_launcher_save_and_end(tmp_path: Path) -> None:
    with started(command("torchrun", "ddp"), tmp_path / "run") as job:
        wait_for(tmp_path / "run/metrics.jsonl")
        workers = psutil.Process(job.pid).children()
        assert len(workers) == 2
        job.kill()
        _, left = psutil.wait_procs(workers, timeout=30)
        ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        alive = [process for process in left if process.status() not in ended]
        for process in alive:
            process.kill()
    assert alive == [], "they train on without anybody to end them"
    assert list((tmp_path / "run/checkpoints").glob("step-*"))
    assert "stopped at step" in (tmp_path / "run/log.txt").read_text()


def test_ctrl_c_says_where_training_stopped(tmp_path: Path) -> None:
    with started([sys.executable, "examples/train.py"], tmp_path / "run") as job:
        wait_for(tmp_path / "run/metrics.jsonl")
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert re.search(r"^stopped at step \d+ of 4600", said, re.MULTILINE)
    assert "done:" not in said


# Short jobs that nobody disturbs


JOBS = int(os.environ.get("JOBS", "22"))
SHORT = [
    "--task", "digits_cnn:DigitsCNN", "--task_settings.width", "8", "--global_batch_size", "48", "--log_every", "1",
    "--save_every", "2", "--eval_every", "3",
]  # fmt: skip
ALARM = re.compile(
    r"the job ends; its ranks|Traceback|terminate called|Fatal Python error|\bwarn", re.IGNORECASE
)


def left_behind(folder: Path) -> list[str]:
    """List the processes that still write to the output of a job, which ``folder`` holds."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/fd/2").startswith(str(folder)):
                found.append(str(process))
        except OSError:  # it just ended, or is of another user
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_a_finished_job_exits_with_0_without_an_alarm_and_leaves_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, draw, folder = layouts(tmp_path), random.Random(JOBS), tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the output of the jobs goes
    for number in range(JOBS):
        strategy, world = [*commands][number % len(commands)]
        drawn = {
            "max_steps": draw.randint(2, 7),
            "save_in_background": draw.choice(["true", "false"]),
            "workers": draw.choice([0, 0, 0, 1]),
            # On another layout each time. ZeRO-3 refuses to compile.
            "compile": "true" if number % 50 == 11 and strategy != "zero3" else "false",
        }
        words = [*commands[strategy, world], *SHORT, "--micro_batch_size", str(48 // world)]
        words += options(drawn)
        job = run(words, folder, timeout=3600).ok()  # whatever else the machine does
        said = f"{number}: {strategy} {world} {drawn}\n{job.out}\n{job.err}"
        assert not ALARM.search(job.out + job.err), said
        assert left_behind(tmp_path) == [], said
        assert not [path.name for path in folder.rglob(".*") if path.name != ".lock"], said
        assert (job.plan["strategy"], job.plan["world_size"]) == (strategy, world)
        assert job.rows[-1]["step"] == drawn["max_steps"]
        assert (folder / "model/model.safetensors").exists()
        shutil.rmtree(folder)
