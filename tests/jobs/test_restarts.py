"""Jobs that their launcher starts again: they go on by themselves, to the curve of a run that
nobody broke.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launchers import Job, command, layouts, run

DIGITS = [
    "--config",
    "examples/configs/digits_cnn.yaml",
    "--log_every",
    "1",
    "--warmup_steps",
    "2",
    "--max_steps",
    "8",
]
BROKEN = [
    *DIGITS,
    "--save_every",
    "2",
    "--save_in_background",
    "false",
    "--task",
    "tests.workers.failing:DiesOnce",
]


def account_of(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.output_dir / "summary.json").read_text())["attempts"]
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_seconds"], abs=0.01), (
        "parts of the whole"
    )
    return found


def assert_went_on(job: Job, processes: int) -> None:
    log = (job.output_dir / "log.txt").read_text()
    assert (
        "note: started again by the launcher (1 of --max_restarts): resumes as with resume: auto"
        in log
    )
    assert f"note: resumed from {job.output_dir / 'checkpoints' / 'step-00000004'}" in log
    assert [row["step"] for row in job.rows if "loss" in row] == list(range(1, 9))
    assert job.plan["world_size"] == processes
    account = account_of(job)
    assert account["count"] == 2 and 0 < account["goodput"] < 1
    assert account["seconds"]["training"] > 0 and account["seconds"]["down"] >= 0
    attempts = json.loads((job.output_dir / "attempts.json").read_text())
    assert [(one["first_step"], one["last_step"]) for one in attempts] == [(0, 4), (4, 8)]


@pytest.mark.parametrize(
    ("launcher", "strategy", "rendezvous"),
    [
        ("torchrun", "ddp", []),
        *(
            pytest.param("torchrun", one, [], marks=pytest.mark.slow)
            for one in ("fsdp", "zero1", "zero2", "zero3")
        ),
        pytest.param("torchrun", "fsdp", ["--standalone"], marks=pytest.mark.slow),
        pytest.param("torchrun", "zero2", ["--rdzv_backend", "c10d"], marks=pytest.mark.slow),
        pytest.param("accelerate", "ddp", [], marks=pytest.mark.slow),
    ],
)
def test_a_job_that_is_started_again_ends_as_one_that_nobody_broke(
    launcher: str, strategy: str, rendezvous: list[str], tmp_path: Path
) -> None:
    words = command(launcher, strategy)
    at = 2 if launcher == "accelerate" else 1
    broken = run(
        [*words[:at], "--max_restarts", "1", *rendezvous, *words[at:], *BROKEN], tmp_path / "broken"
    ).ok()
    whole = run([*command("ranks", strategy), *DIGITS], tmp_path / "whole").ok()
    assert_went_on(broken, 2)
    assert broken.losses == whole.losses
    assert broken.evaluation == whole.evaluation
    assert account_of(whole)["count"] == 1


@pytest.mark.parametrize(
    ("strategy", "world"), [("single", 1), pytest.param("ddp", 3, marks=pytest.mark.slow)]
)
def test_a_job_that_is_started_again_on_other_processes_keeps_its_batch(
    strategy: str, world: int, tmp_path: Path
) -> None:
    """By the words of the first attempt, ``--overwrite`` among them, which deletes nothing now."""
    commands, batch = layouts(tmp_path), ["--global_batch_size", "48", "--micro_batch_size", "8"]
    broken = [
        *BROKEN,
        *batch,
        "--task_settings.at",
        "13",
        "--overwrite",
    ]  # 3 micro-batches a step on two processes
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
