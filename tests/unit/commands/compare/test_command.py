"""``trainer compare`` as a command: the table, the page, the JSON, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from comparison_page import data_of
from made_runs import made, written

from trainer.commands.cli import main
from trainer.commands.runs import Run
from trainer.commands.trials import Trial
from trainer.config.load import load_config


def test_table_page_and_json_of_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [
        written(made("x", speed=speed), tmp_path / name)
        for name, speed in (("ddp", 90.0), ("fsdp", 100.0))
    ]
    assert main(["compare", *map(str, folders), "--json", "c.json", "--title", "A & B"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"ddp +ddp +2 +90 \(90-90\) +1000 B +1.6 KiB +1.5000 +1.4000", out)
    assert "One layout that ran 2 times: 90, 100 samples/s, 11% apart" in out, (
        "two folders of the same strategy"
    )
    told = json.loads((tmp_path / "c.json").read_text())
    assert [run["name"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert told["runs"][0]["samples_per_second"] == 90.0
    assert told["runs"][0]["curves"]["eval"] == [[5, 320, 0.5, 1.4]]
    assert told["settings"]["same"]["drop_last"] is False, (
        "what an older run does not say had its default"
    )
    assert told == data_of((tmp_path / "compare.html").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: neither an output directory of a run (no plan.json) nor a W&B run"),
        (["nowhere", "--max_steps", "3"], "'--max_steps': belongs to a training"),
        (["a.yaml", "--launch"], "needs --config"),
        (
            ["a.yaml", "--launch", "--config", "t.yaml", "--script", "no.py"],
            "'no.py': does not exist",
        ),
        (
            ["a.yaml", "--launch", "--config", "t.yaml"],
            "t.yaml: the training config cannot be read: No such file",
        ),
        (
            ["x/a.yaml", "y/a.yaml", "--launch", "--config", "t.yaml"],
            "two launch files have the same name",
        ),
    ],
)
def test_mistakes_in_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_logged_steps_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    assert main(["compare", str(folder)]) == 2
    assert "a: no step was logged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "pushed_to"),
    [([], "null"), (["--push_to_hub", "anna/own"], "anna/own")],
)
def test_trainings_that_are_compared_push_nothing_unless_asked(
    more: list[str], pushed_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\n")
    Path("t.yaml").write_text("task: a:B\nmax_steps: 1\npush_to_hub: anna/digits\n")
    started: list[Trial] = []

    def run(trial: Trial, *, verbose: bool = False) -> Run:
        started.append(trial)
        return Run(name=trial.name, path=str(trial.output), error="not started by this test")

    monkeypatch.setattr(Trial, "run", run)
    main(["compare", "a.yaml", "--launch", "--config", "t.yaml", *more])
    [trial] = started
    loaded = load_config([*trial.arguments, "--output_dir=x"])
    assert loaded.config.push_to_hub == (None if pushed_to == "null" else pushed_to)
