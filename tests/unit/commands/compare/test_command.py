"""``trainer compare``: the table, the page, the JSON, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comparison_page import data_of
from made_runs import made, odd_runs, written

from trainer.commands.cli import main
from trainer.commands.compare.present import as_table
from trainer.commands.compare.report import make_report


def test_table_page_and_json_of_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ddp, fsdp = (
        written(made("x", speed=speed, off=off, strategy=name, total_steps=5), tmp_path / name)
        for name, speed, off in (("ddp", 90.0, 0.0), ("fsdp", 100.0, 1e-7))
    )
    assert main(["compare", str(ddp), str(fsdp), "--json", "c.json", "--title", "A & B"]) == 0
    out = capsys.readouterr().out
    assert "ddp   ddp       2      90         1000 B  1.5000" in out
    assert "beside ddp, fsdp: the same curve: at most 1.0e-07 apart (bound 1e-05)" in out
    assert max(map(len, out.splitlines())) <= 80
    told = json.loads((tmp_path / "c.json").read_text())
    assert [run["name"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert told["runs"][0]["curves"]["eval"] == [[5, 320, 0.5, 1.4]]
    assert told["settings"]["different"] == {"strategy": {"ddp": "ddp", "fsdp": "fsdp"}}
    assert told == data_of((tmp_path / "compare.html").read_text())


def test_runs_that_are_odd() -> None:
    report = make_report(odd_runs()) | {"title": ""}
    table = as_table(report)
    assert max(map(len, table.splitlines()[9:])) <= 80
    assert "killed: did not end; last logged step 2 of 9" in table
    assert "silent: logged no step" in table
    assert [group["runs"] for group in report["groups"]] == [
        ["ddp", "zero3", "killed", "unmeasured", "sparse"],
        ["other_rate_and_a_name_that_is_longer_than_a_telephone_is_wide"],
    ]
    verdicts = report["groups"][0]["verdicts"]
    assert [text.partition(":")[0] for text in verdicts] == ["zero3", "killed", "unmeasured"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere is not the output folder of a run: No such file or directory"),
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
