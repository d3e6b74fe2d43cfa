"""A job that is killed at any moment resumes, also when its launcher starts it again.

| promised | strategies and worlds | tests |
|---|---|---|
| After SIGKILL to all processes or one, a whole checkpoint is there and the end is the same, where another layout resumes each time, with mixtures, blocks and shards too | one process, all on 2 and 3 (nightly) | test_whatever_is_killed_goes_on_anywhere |
| A job that its launcher starts again resumes by itself | all on 2 under torchrun, DDP under accelerate launch (nightly) | test_a_job_that_is_started_again_ends_as_one_that_nobody_broke |
| On another number of processes it keeps its global batch | DDP from 2 to one process; to 3 (nightly) | test_a_job_that_is_started_again_on_other_processes_keeps_its_batch |

``KILLS=1000 pytest tests/jobs/test_kill.py -k goes_on_anywhere`` is the long form; docs/faults.md
says what was seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest
from launchers import Job, command, connection, json_in, layouts, options, run
from small_examples import digits
from tiny_language import save_rows

from trainer.checkpoint import discover

# Killed, and resumed on another layout each time


STEPS, KILLS = 60, int(os.environ.get("KILLS", "12"))
JOB = [
    "--max_steps", str(STEPS), "--log_every", "1", "--lr", "0.01",
    "--global_batch_size", "24", "--schedule", "linear", "--resume", "auto", "--eps", "1e-4",
    "--save_every", "2", "--keep_last", "1", "--keep_every", "20",
]  # fmt: skip


def checkpoint_steps(run: Path) -> list[int]:
    return [found.step for found in discover.listing(run / "checkpoints")]


def check_checkpoints(run: Path, newest: int, said: str) -> int:
    """Check that what has a name is whole, and return the newest step, at least what it was."""
    found = [discover.verify(listed) for listed in discover.listing(run / "checkpoints")]
    assert [checkpoint.problem for checkpoint in found if checkpoint.problem] == [], said
    reached = max((checkpoint.step for checkpoint in found), default=0)
    assert reached >= newest, f"step {newest} was there, and now {reached} is the newest: {said}"
    return reached


def losses_of(job: Job) -> dict[int, float]:
    found = [(row["step"], row["loss"]) for row in job.rows if "loss" in row]
    assert [step for step, _ in found] == [*range(1, len(found) + 1)], "each step once"
    return dict(found)


class Killer(threading.Thread):
    """Waits until a job has logged something, and then up to ``seconds``; kills all of its ranks,
    or one.
    """

    def __init__(self, run: Path, seconds: float, every: bool) -> None:
        super().__init__()
        self.rows, self.seconds, self.every = run / "metrics.jsonl", seconds, every
        self.over, self.struck = threading.Event(), False
        self.parent = connection(threading.get_ident(), "")[
            1
        ]  # of the ranks that this thread starts
        self.before = self._written()

    def _written(self) -> int:
        return self.rows.stat().st_size if self.rows.exists() else 0

    def run(self) -> None:
        while self._written() == self.before:
            if self.over.wait(0.01):
                return
        time.sleep(self.seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.parent).children()
            for one in found if self.every else found[-1:]:
                one.kill()
                self.struck = True


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(
    ("task", "workers"),
    [
        ("resuming:Odd", 0),
        ("data_tasks:Mixture", 1),
        ("data_tasks:OnBlocks", 0),
        ("data_tasks:OnBlocks", 3),
        ("data_tasks:OnShards", 1),
    ],
)
def test_whatever_is_killed_goes_on_anywhere(task: str, workers: int, tmp_path: Path) -> None:
    commands, draw, folder = layouts(tmp_path), random.Random(KILLS), tmp_path / "run"
    config = {"task": f"tests.workers.{task}", "workers": workers}
    if task.startswith("data_tasks:On"):
        config["task_settings"] = {"files": f"{tmp_path}/rows*.jsonl"}
        for file in range(3):
            rows = [{"id": row, "label": row % 3} for row in range(file, 200, 3)]
            save_rows(tmp_path / f"rows{file}.jsonl", rows)
    (tmp_path / "task.json").write_text(json.dumps(config))

    def train(strategy: str, world: int, output_dir: Path) -> Job:
        words = [*commands[strategy, world], "--config", str(tmp_path / "task.json"), *JOB]
        words += ["--micro_batch_size", str(24 // world)]
        return run(words, output_dir, timeout=3600)  # whatever else the machine does

    expected = losses_of(train("single", 1, tmp_path / "whole").ok())
    newest = killed = runs = 0
    while killed < KILLS:
        runs += 1
        assert runs < 10 * KILLS, f"of {runs} runs {killed} were killed"
        strategy, world = draw.choice([*commands])
        killer = Killer(folder, draw.uniform(0, 0.6), every=draw.random() < 0.5)
        killer.start()
        job = train(strategy, world, folder)
        killer.over.set()
        killer.join()
        said = f"{strategy} {world} {job.code}\n{job.out[-3000:]}\n{job.err[-6000:]}"
        assert killer.struck or job.code == 0, f"nobody killed it, and it failed: {said}"
        newest = check_checkpoints(folder, newest, said)
        killed += bool(job.code)
        if job.code == 0:
            assert losses_of(job) == pytest.approx(expected, rel=1e-5)
            assert checkpoint_steps(folder) == [STEPS, 40, 20]
            shutil.rmtree(folder)
            newest = 0


# Started again by the launcher


DIGITS = digits(steps=8, warmup_steps=2)
SAVING = ["--save_every", "2", "--save_in_background", "false"]
FAULT = ["--task", "tests.workers.faults:Faulty", "--task_settings.fault", "killed"]


def broken_at(call: int, folder: Path) -> list[str]:
    """Return the arguments of a training whose rank 1 is killed in some micro-batch, once."""
    settings = options({"after": call, "stamp": folder / "stamp"}, "task_settings.")
    return [*DIGITS, *SAVING, *FAULT, *settings]


def assert_went_on(job: Job, processes: int) -> None:
    log = (job.output_dir / "log.txt").read_text()
    assert (
        "note: started again by the launcher (1 of --max_restarts): resumes as with resume: auto"
        in log
    )
    assert f"note: resumed from {job.output_dir / 'checkpoints' / 'step-00000004'}" in log
    assert [row["step"] for row in job.rows if "loss" in row] == list(range(1, 9))
    assert job.plan["world_size"] == processes
    attempts = json_in(job.output_dir / "summary.json")["attempts"]
    assert [(attempt["first_step"], attempt["last_step"]) for attempt in attempts] == [
        (0, 4),
        (4, 8),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy", "rendezvous"),
    [
        *(("torchrun", one, []) for one in ("ddp", "fsdp", "zero1", "zero2", "zero3")),
        ("torchrun", "fsdp", ["--standalone"]),
        ("torchrun", "zero2", ["--rdzv_backend", "c10d"]),
        ("accelerate", "ddp", []),
    ],
)
def test_a_job_that_is_started_again_ends_as_one_that_nobody_broke(
    launcher: str, strategy: str, rendezvous: list[str], tmp_path: Path
) -> None:
    words = command(launcher, strategy)
    at = 2 if launcher == "accelerate" else 1
    broken = run(
        [*words[:at], "--max_restarts", "1", *rendezvous, *words[at:], *broken_at(5, tmp_path)],
        tmp_path / "broken",
    ).ok()
    whole = run([*command("ranks", strategy), *DIGITS], tmp_path / "whole").ok()
    assert_went_on(broken, 2)
    assert broken.losses == whole.losses
    assert broken.evaluation == whole.evaluation


@pytest.mark.parametrize(
    ("strategy", "world"), [("single", 1), pytest.param("ddp", 3, marks=pytest.mark.slow)]
)
def test_a_job_that_is_started_again_on_other_processes_keeps_its_batch(
    strategy: str, world: int, tmp_path: Path
) -> None:
    """By the words of the first attempt, ``--overwrite`` among them, which deletes nothing now."""
    commands, batch = layouts(tmp_path), ["--global_batch_size", "48", "--micro_batch_size", "8"]
    # 3 micro-batches a step on two processes.
    broken = [*broken_at(13, tmp_path), *batch, "--overwrite"]
    assert run([*commands["ddp", 2], *broken], tmp_path / "run").code != 0
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    job = run([*commands[strategy, world], *broken], tmp_path / "run", environment=restarted).ok()
    whole = run([*commands["single", 1], *DIGITS, *batch], tmp_path / "whole").ok()
    assert_went_on(job, world)
    assert job.losses == pytest.approx(whole.losses, rel=1e-5)
    assert (
        job.plan["global_batch_size"] == 48
        and "changed since" not in (job.output_dir / "log.txt").read_text()
    )
