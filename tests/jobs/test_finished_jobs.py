"""Short jobs that nobody disturbs end with 0, without an alarm, and leave nothing but their run.

``JOBS=1000 pytest tests/jobs/test_finished_jobs.py`` is the long form; docs/faults.md says what was
seen.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import psutil
import pytest
from launchers import layouts, run

JOBS = int(os.environ.get("JOBS", "22"))
JOB = [
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
    commands, draw, counts, folder = (
        layouts(tmp_path),
        random.Random(JOBS),
        Counter[str](),
        tmp_path / "run",
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the output of the jobs goes
    for number in range(JOBS):
        strategy, world = [*commands][number % len(commands)]
        drawn = {
            "max_steps": draw.randint(2, 7),
            "save_in_background": draw.choice(["true", "false"]),
            "workers": draw.choice([0, 0, 0, 1]),
            "compile": "true" if number % 50 == 11 else "false",  # on another layout each time
        }
        words = [*commands[strategy, world], *JOB, "--micro_batch_size", str(48 // world)]
        words += [word for key, value in drawn.items() for word in (f"--{key}", str(value))]
        job = run(words, folder, timeout=3600).ok()  # whatever else the machine does
        said = f"{number}: {strategy} {world} {drawn}\n{job.out}\n{job.err}"
        assert not ALARM.search(job.out + job.err), said
        assert left_behind(tmp_path) == [], said
        assert not [path.name for path in folder.rglob(".*") if path.name != ".lock"], said
        assert (folder / "model" / "model.safetensors").exists() and job.rows[-1]["step"] == drawn[
            "max_steps"
        ]
        counts.update([f"{strategy} {world}", *(f"{key} {value}" for key, value in drawn.items())])
        (tmp_path / "counts.json").write_text(json.dumps(counts))  # so far, for who waits
        shutil.rmtree(folder)
    assert sum(counts[f"{strategy} {world}"] for strategy, world in commands) == JOBS
