"""``trainer compare``: the table, the JSON, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launchers import json_in
from made_runs import made, odd_runs, written

from trainer.commands.cli import main
from trainer.commands.compare import as_table, make_report


def test_table_and_json_of_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ddp, fsdp = (
        written(made("x", speed=speed, off=off, strategy=name, total_steps=5), tmp_path / name)
        for name, speed, off in (("ddp", 90.0, 0.0), ("fsdp", 100.0, 1e-7))
    )
    file = tmp_path / "c.json"
    assert main(["compare", str(ddp), str(fsdp), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "ddp   ddp       2      5     5   90         1000 B  1.5000" in out
    assert "beside ddp, fsdp: same: loss at most 1.0e-07 apart (bound 1e-05)" in out
    told = json_in(file)
    assert [run["run"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert (told["runs"][0]["loss"], told["runs"][0]["evaluation"]) == (1.5, {"eval/loss": 1.4})
    assert len(told["notes"]) == 1, "no setting differs, and a verdict"


def test_runs_that_are_odd() -> None:
    report = make_report(odd_runs())
    table = as_table(report)
    assert re.search(r"^killed +ddp +2 +2 +9 ", table, re.MULTILINE)
    assert re.search(r"^silent +ddp +2$", table, re.MULTILINE)
    compared = [text.partition(": ") for text in report["notes"]]
    verdicts = [f"beside ddp, {name}" for name in ("zero3", "killed", "unmeasured")]
    assert [text[0] for text in compared[:3]] == verdicts
    other = "other_rate_and_a_name_that_is_longer_than_a_telephone_is_wide"
    assert compared[3] == (other, ": ", "lr: 0.1 -> 0.2")
    assert compared[4] == (other, ": ", "schedule_settings.gamma: null -> 0.5")


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    for path, said in (
        ("nowhere", "is no folder of a run: it has no plan.json"),
        ("/dev/zero", "is no folder of a run: it has no plan.json"),
        (str(folder), "no step was logged"),
    ):
        assert main(["compare", path]) == 2
        assert said in capsys.readouterr().err


def test_a_terminal_gets_no_escape_sequence_of_a_name() -> None:
    table = as_table(make_report([made("a\x1b[31mred\x07 ü\u202e"), made("b")]))
    assert "a\\x1b[31mred\\x07 ü\\u202e" in table
    assert not {"\x1b", "\x07", "\u202e"} & set(table)
