"""``trainer compare``: reading runs, the verdict on their curves, and the sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from comparison_page import data_of
from made_runs import PLAN, made, odd_runs, written

from trainer.commands.cli import main
from trainer.commands.compare.present import as_table
from trainer.commands.compare.report import make_report
from trainer.commands.runs import Run, read_run
from trainer.config.fingerprint import SETTINGS
from trainer.errors import ConfigError
from trainer.text import printable


def verdict(*runs: Run) -> tuple[str, str]:
    [group] = make_report(runs)["groups"]
    return group["verdict"], group["why"]


def test_runs_that_learn_the_same() -> None:
    told = make_report([made("ddp", speed=200), made("zero3", speed=100, memory=500, strategy="zero3", off=1e-7)])
    [group] = told["groups"]
    assert group["verdict"] == "the same curve"
    assert group["against"][0]["first"] == pytest.approx(1e-7, rel=1e-3)
    assert told["settings"]["different"] == {"strategy": {"ddp": "ddp", "zero3": "zero3"}}
    assert told["settings"]["same"].items() >= {"task": "a:B", "seed": 0, "lr": 0.1, "world_size": 2}.items()
    sentence = told["recommendation"]
    assert sentence.startswith("Take ddp: 200 samples/s, 100% ahead of zero3; where memory is short, zero3 needs 500 B")
    close = make_report([made("ddp", speed=101), made("zero3", speed=100, strategy="zero3")])["recommendation"]
    assert "1% ahead of zero3 (so little that a repeat may turn it around)" in close and "repeat" not in sentence
    assert "50% slower" in sentence and "the same, so speed and memory decide" in sentence and "on CPUs" in sentence


@pytest.mark.parametrize(
    ("precision", "off", "expected"),
    [("no", 1e-6, "the same curve"), ("no", 2e-5, "different curves"), ("bf16", 1e-2, "the same curve"),
     ("bf16", 3e-2, "different curves")],
)  # fmt: skip
def test_the_bound_on_the_first_step(precision: str, off: float, expected: str) -> None:
    runs = made("a", mixed_precision=precision), made("b", off=off, mixed_precision=precision)
    assert verdict(*runs)[0] == expected


def test_a_curve_that_drifts_away_is_told() -> None:
    away, lost = made("b"), made("b")
    for row in away.rows[1:5]:
        row["loss"] *= 1.02
    lost.rows[2]["loss"] = None
    found, why = verdict(made("a"), away)
    assert found == "different curves" and why.startswith("apart from a: b (first step 0.0e+00")
    found, why = verdict(made("a"), lost)
    assert found == "different curves" and why.startswith("apart from a: b (first step 0.0e+00, mean not a number)")


def test_one_odd_run_leaves_the_others_comparable() -> None:
    told = make_report(odd_runs())
    main, other = told["groups"]
    assert main["runs"] == ["ddp", "zero3", "killed", "unmeasured", "sparse"] and main["verdict"] == "the same curve"
    assert [entry["same"] for entry in main["against"]] == [True, True, True, None]
    assert main["why"].endswith("; sparse logged no step that ddp logged")
    assert other["verdict"] == "one run"
    entries = {entry["name"].split("_")[0]: entry for entry in told["runs"]}
    assert {name: entry["differs"] for name, entry in entries.items() if entry["differs"]} == {
        "other": {"lr": [0.1, 0.2], "schedule_settings.gamma": [None, 0.5]}
    }
    assert {name: entry["state"] for name, entry in entries.items() if entry["state"]} == {
        "killed": "did not end; last logged step 2 of 9",
        "silent": "logged no step",
        "failed": "failed: RuntimeError: the cat sat on rank 1",
    }
    assert told["recommendation"].startswith(
        "Of the 4 that ended with the same settings: take ddp: 200 samples/s, 33% a"
    )
    shown = as_table({**told, "title": ""})
    assert "other settings: lr 0.1 -> 0.2, schedule_settings.gamma none -> 0.5" in shown


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_that_decides_the_numbers_keeps_runs_apart(key: str) -> None:
    told = make_report([made("a"), made("b", **{key: "bf16"})])
    assert len(told["groups"]) == 2 and told["runs"][1]["differs"].keys() == {key}
    assert told["recommendation"].startswith("No two runs learn under the same settings")


@pytest.mark.parametrize(("schedule", "groups"), [("constant", 1), ("cosine", 2)])
def test_another_length_matters_to_a_schedule_that_falls_to_the_end(schedule: str, groups: int) -> None:
    runs = [made(str(total), schedule=schedule, total_steps=total) for total in (5, 10)]
    assert len(make_report(runs)["groups"]) == groups


def test_three_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [written(made("x", speed=speed), tmp_path / name) for name, speed in (("ddp", 90.0), ("fsdp", 100.0))]
    assert main(["compare", *map(str, folders), "--json", "c.json", "--title", "A & B"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"ddp +ddp +2 +90 +1000 B +1.6 KiB +400 B +1.5000 +1.4000", out) and "Take fsdp" in out
    told = json.loads((tmp_path / "c.json").read_text())
    assert [run["name"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert told["runs"][0]["sent_bytes"] == 5 * 400 and told["runs"][0]["samples_per_second"] == 90.0
    assert told["runs"][0]["curves"]["eval"] == [[5, 320, 0.5, 1.4]]
    assert told["settings"]["same"]["drop_last"] is False, "what an older run does not say had its default"
    assert told == data_of((tmp_path / "compare.html").read_text())


def test_runs_on_different_machines_are_said_to_be() -> None:
    here, there = ({"cpu": name, "cores": 2} for name in ("Abacus 3000", "Abacus 4000"))
    told = make_report([made("a", machine=here), made("b", speed=200, machine=there)])
    assert told["groups"][0]["verdict"] == "the same curve", "the machine decides no numbers"
    assert "; but not on the same machine: speed and memory say as much" in told["recommendation"]
    assert told["settings"]["different"] == {"machine.cpu": {"a": "Abacus 3000", "b": "Abacus 4000"}}
    assert told["settings"]["same"]["machine.cores"] == 2
    assert [run["machine"] for run in told["runs"]] == ["Abacus 3000 (2 cores)", "Abacus 4000 (2 cores)"]
    for other in ({"machine": here}, {}):  # an older run does not say
        same = make_report([made("a", machine=here), made("b", speed=200, **other)])
        assert "machine" not in same["recommendation"]


def test_memory_that_another_phase_needs_beyond_training_is_said() -> None:
    run = made("a", memory=1000)
    phases = {"set-up": [3000, 2000], "training": [1000, 999], "saving": [900, 900]}
    memory = {phase: {"allocated": counts, "reserved": [5000, 5000]} for phase, counts in phases.items()}
    told = make_report([replace(run, summary={**run.summary, "memory": memory}), made("b")])
    assert told["runs"][0]["memory"] == {"set-up": 3000, "training": 1000, "saving": 900}
    assert "a: more memory than in training: set-up 2.9 KiB" in as_table({**told, "title": ""})


def test_a_run_that_was_killed_is_read(tmp_path: Path) -> None:
    """Without summary.json, and with a last row that was not written to its end."""
    folder = written(made("a"), tmp_path / "a")
    (folder / "summary.json").unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    told = make_report([read_run(folder)])
    assert told["runs"][0]["seconds"] == {} and told["runs"][0]["state"] == "did not end; last logged step 5"
    assert told["recommendation"] == "One run alone: there is nothing to choose."


def test_a_run_on_wandb_is_read_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the API that is used, without a server: ``Api.run``, ``config``, ``scan_history``, ``summary``."""
    import wandb

    class Api:
        def __init__(self, timeout: int) -> None:
            """Knows one run."""

        def run(self, path: str) -> Any:
            if path != "us/project/abc":
                raise wandb.errors.CommError(f"could not find {path}")
            rows = [{"step": s, "samples": 8 * s, "train/loss": 1 / s, "eval/loss": None} for s in (1, 2)]
            told = {"summary/peak_memory_bytes": 5, "summary/seconds/wall": 2.0}
            return SimpleNamespace(name="theirs", config=PLAN, summary=told, scan_history=lambda: rows)

    monkeypatch.setattr(wandb, "Api", Api)
    run = read_run("wandb:us/project/abc")
    assert (run.name, run.plan["strategy"], run.curve("loss")) == ("theirs", "ddp", {1: 1.0, 2: 0.5})
    assert run.summary == {"seconds": {"wall": 2.0}, "peak_memory_bytes": [5]} and run.evaluation == {}
    with pytest.raises(ConfigError, match="wandb:us/other/abc: W&B: could not find us/other/abc"):
        read_run("wandb:us/other/abc")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: neither an output directory of a run (no plan.json) nor a W&B run"),
        (["nowhere", "--max_steps", "3"], "'--max_steps': belongs to a training"),
        (["a.yaml", "--launch"], "needs --config"),
        (["a.yaml", "--launch", "--config", "t.yaml", "--script", "no.py"], "'no.py': does not exist"),
        (["a.yaml", "--launch", "--config", "t.yaml"], "t.yaml: the training config does not exist"),
        (["x/a.yaml", "y/a.yaml", "--launch", "--config", "t.yaml"], "two launch files have the same name"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_steps_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    assert main(["compare", str(folder)]) == 2
    assert "a: no step was logged" in capsys.readouterr().err


def test_a_terminal_obeys_nothing_in_names() -> None:
    assert printable("a\x1b[31mred\x07\nü \u202e") == "a\\x1b[31mred\\x07\nü \\u202e"
