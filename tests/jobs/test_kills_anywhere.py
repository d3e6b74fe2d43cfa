"""SIGKILL at any moment, and each time another strategy and number of processes goes on: the end is
the same.

``KILLS=1000 pytest tests/jobs/test_kills_anywhere.py`` is the long form; docs/faults.md says what
was seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from launchers import Job, layouts, run, starter_id

from trainer.checkpoint import discover

STEPS, KILLS = 60, int(os.environ.get("KILLS", "12"))
JOB = [
    "--task", "tests.workers.resuming:Odd", "--max_steps", str(STEPS), "--log_every", "1", "--lr", "0.01",
    "--global_batch_size", "24", "--schedule", "linear", "--resume", "auto", "--eps", "1e-4",
    "--save_every", "2", "--keep_last", "1", "--keep_every", "20",
]  # fmt: skip


def losses(job: Job) -> dict[int, float]:
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
        self.before = self._written()

    def _written(self) -> int:
        return self.rows.stat().st_size if self.rows.exists() else 0

    def run(self) -> None:
        while self._written() == self.before:
            if self.over.wait(0.01):
                return
        time.sleep(self.seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(starter_id()).children()
            for one in found if self.every else found[-1:]:
                one.kill()
                self.struck = True


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_whatever_is_killed_goes_on_anywhere(tmp_path: Path) -> None:
    commands, draw, folder = layouts(tmp_path), random.Random(KILLS), tmp_path / "run"

    def train(strategy: str, world: int, output_dir: Path) -> Job:
        words = [*commands[strategy, world], *JOB, "--micro_batch_size", str(24 // world)]
        return run(words, output_dir, timeout=3600)  # whatever else the machine does

    expected, newest, counts = (
        losses(train("single", 1, tmp_path / "whole").ok()),
        0,
        Counter[str](),
    )
    while counts["killed"] < KILLS:
        strategy, world = draw.choice([*commands])
        killer = Killer(folder, draw.uniform(0, 0.6), every=draw.random() < 0.5)
        killer.start()
        job = train(strategy, world, folder)
        killer.over.set()
        killer.join()
        said = f"{strategy} {world} {job.code}\n{job.out[-3000:]}\n{job.err[-6000:]}"
        assert killer.struck or job.code == 0, f"nobody killed it, and it failed: {said}"
        found = [discover.verify(one) for one in discover.listing(folder / "checkpoints")]
        assert [one.problem for one in found if one.problem] == [], "what has a name is whole"
        reached = max((one.step for one in found), default=0)
        assert reached >= newest, (
            f"step {newest} was there, and now {reached} is the newest: {said}"
        )
        newest = reached
        counts["killed" if job.code else "finished"] += 1
        counts[f"{strategy} {world}"] += 1
        (tmp_path / "counts.json").write_text(json.dumps(counts))  # so far, for who waits
        if job.code == 0:
            assert losses(job) == pytest.approx(expected, rel=1e-5)
            assert [one.step for one in found] == [STEPS, 40, 20]
            shutil.rmtree(folder)
            newest = 0
