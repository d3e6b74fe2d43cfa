"""The account of a run's time over attempts: its parts add up to the wall time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.reporting import attempts
from trainer.reporting.attempts import Attempt, Attempts, account
from trainer.reporting.directory import RunDirectory
from trainer.reporting.meter import Meter


def attempt(started: float, seconds: float, first: int, last: int, **apart: float) -> Attempt:
    return Attempt(started=started, seconds=seconds, apart=apart, first_step=first, last_step=last)


def test_redone_steps_and_the_time_between_attempts_are_separate_parts() -> None:
    killed = attempt(1000.0, 110.0, 0, 50, **{"start-up": 10.0})  # 2 s a step
    # It resumed at step 40: ten steps were trained in vain.
    second = attempt(1130.0, 100.0, 40, 60, saving=40.0)
    third = attempt(1230.0, 30.0, 60, 70, evaluation=10.0)
    found = account([killed, second, third])
    assert found["seconds"] == {
        "training": 80.0 + 60.0 + 20.0,
        "redone": 20.0,
        "down": 20.0,
        "start-up": 10.0,
        "saving": 40.0,
        "evaluation": 10.0,
    }
    assert found["wall_seconds"] == 260.0 == 1230.0 + 30.0 - 1000.0
    assert (found["count"], found["goodput"]) == (3, round(160 / 260, 4))


def test_a_checkpoint_of_an_earlier_attempt_makes_all_since_redone() -> None:
    found = account([attempt(0, 10, 0, 10), attempt(10, 10, 10, 20), attempt(20, 10, 5, 15)])
    assert found["seconds"] == {"training": 15.0, "redone": 15.0, "down": 0.0}


def test_a_clock_that_was_set_back_makes_no_part_negative() -> None:
    found = account([attempt(5000, 10, 0, 10), attempt(100, 10, 10, 20)])
    assert found["seconds"]["down"] == 0.0 and found["wall_seconds"] == 20.0 == sum(
        found["seconds"].values()
    )


def run_directory(folder: Path) -> RunDirectory:
    folder.mkdir(exist_ok=True)
    return RunDirectory(str(folder), main=True)


def test_an_attempt_is_written_every_few_seconds_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(torch.device("cpu"))
    meter.start()
    made = Attempts(run_directory(tmp_path / "run"), meter, 3)
    made.note(4)
    made.note(5)
    [row] = json.loads((tmp_path / "run" / attempts.FILE).read_text())
    assert (row["first_step"], row["last_step"]) == (3, 4), "the second is too soon"
    found = made.account(9)
    [row] = json.loads((tmp_path / "run" / attempts.FILE).read_text())
    assert row["last_step"] == 9 and abs(row["started"] + row["seconds"] - time.time()) < 1.0
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_seconds"], abs=0.01)
    again = Attempts(run_directory(tmp_path / "run"), Meter(torch.device("cpu")), 9)
    assert again.account(12)["count"] == 2
    other = RunDirectory(str(tmp_path / "run"), main=False)
    before = (tmp_path / "run" / attempts.FILE).read_bytes()
    Attempts(other, meter, 0).account(1)
    assert (tmp_path / "run" / attempts.FILE).read_bytes() == before, "the main process writes"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "{}",
        "7",
        "[7]",
        '["a"]',
        "[{}]",
        "\xff",
        '[{"started": 1}]',
        '[{"started": "x", "apart": {}}]',
        '[{"started": 1, "seconds": 1, "apart": [], "first_step": 0, "last_step": 1}]',
    ],
)
def test_a_file_of_attempts_that_cannot_be_read_stops_nothing(content: Any, tmp_path: Path) -> None:
    directory = run_directory(tmp_path / "run")
    (tmp_path / "run" / attempts.FILE).write_bytes(content.encode("latin-1"))
    assert Attempts(directory, Meter(torch.device("cpu")), 0).account(1)["count"] == 1
