"""Runs that are read back: from output folders, and from W&B."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import PLAN, made, written

from trainer.commands.compare.report import make_report
from trainer.commands.runs import read_run
from trainer.errors import ConfigError


def test_output_folder_of_a_killed_run_is_read(tmp_path: Path) -> None:
    """Without summary.json, and with a last row that was not written to its end."""
    folder = written(made("a"), tmp_path / "a")
    (folder / "summary.json").unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    told = make_report([read_run(folder)])
    assert (
        told["runs"][0]["seconds"] == {}
        and told["runs"][0]["state"] == "did not end; last logged step 5"
    )
    assert told["recommendation"] == "One run alone: there is nothing to choose."


def test_a_run_is_called_by_its_run_name_where_it_has_one(tmp_path: Path) -> None:
    folder = written(made("a", run_name="B-ddp-2"), tmp_path / "folder")
    assert read_run(folder).name == "folder"  # all runs of the task are called so
    config = folder / "config.yaml"
    config.write_text(config.read_text() + 'run_name: "{strategy}-by-hand"\n')
    assert read_run(folder).name == "B-ddp-2"


def test_a_run_on_wandb_is_read_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the API that is used, without a server: ``Api.run``, ``config``,
    ``scan_history``, ``summary``.
    """
    import wandb

    class Api:
        def __init__(self, timeout: int) -> None:
            """Knows one run."""

        def run(self, path: str) -> Any:
            if path != "us/project/abc":
                raise wandb.errors.CommError(f"could not find {path}")
            rows = [
                {"step": s, "samples": 8 * s, "train/loss": 1 / s, "eval/loss": None}
                for s in (1, 2)
            ]
            told = {"summary/peak_memory_bytes": 5, "summary/seconds/wall": 2.0}
            return SimpleNamespace(
                name="theirs", config=PLAN, summary=told, scan_history=lambda: rows
            )

    monkeypatch.setattr(wandb, "Api", Api)
    run = read_run("wandb:us/project/abc")
    assert (run.name, run.plan["strategy"], run.curve("loss")) == (
        "theirs",
        "ddp",
        {1: 1.0, 2: 0.5},
    )
    assert (
        run.summary == {"seconds": {"wall": 2.0}, "peak_memory_bytes": [5]} and run.evaluation == {}
    )
    with pytest.raises(ConfigError, match="wandb:us/other/abc: W&B: could not find us/other/abc"):
        read_run("wandb:us/other/abc")
