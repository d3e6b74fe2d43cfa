"""``trainer compare`` as a command: the table, the page, the JSON, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from comparison_page import data_of
from made_runs import made, written

from trainer.commands.cli import main


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
    assert re.search(r"ddp +ddp +2 +90 \(90-90\) +1000 B +1.6 KiB +400 B +1.5000 +1.4000", out)
    assert "One layout that ran 2 times: 90, 100 samples/s, 11% apart" in out, (
        "two folders of the same strategy"
    )
    told = json.loads((tmp_path / "c.json").read_text())
    assert [run["name"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert (
        told["runs"][0]["sent_bytes"] == 5 * 400 and told["runs"][0]["samples_per_second"] == 90.0
    )
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
            "t.yaml: the training config does not exist",
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
