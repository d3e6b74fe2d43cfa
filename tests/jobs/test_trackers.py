"""What trackers have of a run is what the run logged, as their own tools read it back.

| promised | strategies and worlds | tests |
|---|---|---|
| W&B, TensorBoard and Trackio have every row, the model and the profile | ZeRO-2 on 2 (nightly) | test_a_real_run_read_back_by_their_own_tools |
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launchers import command, json_in, run
from trackers import inspect, quiet


@pytest.mark.slow
def test_a_real_run_read_back_by_their_own_tools(tmp_path: Path) -> None:
    """Two processes, three trackers at once; nobody is logged in, so W&B is offline at once."""
    words = [*command("ranks", "zero2"), "--config", "examples/configs/digits_cnn.yaml"]
    words += ["--max_steps", "25", "--log_every", "5", "--experiment", "five"]
    words += ["--trackers", "[wandb, tensorboard, trackio]", "--track_model"]
    words += ["--profile_steps", "3-4"]
    environment = quiet(tmp_path, WANDB_API_KEY="", TRACKIO_DIR=str(tmp_path / "trackio"))
    job = run(words, tmp_path / "out", environment=environment).ok()

    assert job.out.count("wandb: offline (no API key") == 1 and "wandb sync" in job.out
    [folder] = (job.output_dir / "wandb").glob("offline-run-*")
    wandb_run = json.loads(inspect("--summary", "--json", str(folder)))
    assert (wandb_run["project"], wandb_run["name"], wandb_run["state"]) == (
        "samecurve",
        "five-zero2-2",
        "finished",
    )
    assert wandb_run["run_id"] == json_in(job.output_dir / "tracking.json")["wandb"]
    assert {"zero2", "world-2"} <= set(wandb_run["tags"])
    config = wandb_run["config"]
    for key in (
        "strategy",
        "world_size",
        "precision",
        "global_batch_size",
        "lr",
        "lr_reference",
        "versions",
    ):
        assert config[key] == job.plan[key], key
    assert config["task"] == "digits_cnn:DigitsCNN" and "hub_token" not in config
    assert wandb_run["summary"]["eval/loss"] == job.evaluation["eval/loss"]
    records = [json.loads(line) for line in inspect("--json", str(folder)).splitlines()]
    assert [r["artifact"]["type"] for r in records if r["type"] == "artifact"] == ["model"]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(job.output_dir / "tracking/samecurve"))
    events.Reload()
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("train/loss")] == [
        (row["step"], row["loss"]) for row in job.rows if "loss" in row
    ]
    assert any((tmp_path / "trackio").rglob("*.db"))
    assert (job.output_dir / "profile/trace.json.gz").stat().st_size > 1000
    assert "convolution" in (job.output_dir / "profile/operations.txt").read_text()
