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
    told = make_report(
        [made("ddp", speed=200), made("zero3", speed=100, memory=500, strategy="zero3", off=1e-7)]
    )
    [group] = told["groups"]
    assert group["verdict"] == "the same curve"
    assert group["against"][0]["first"] == pytest.approx(1e-7, rel=1e-3)
    assert told["settings"]["different"] == {"strategy": {"ddp": "ddp", "zero3": "zero3"}}
    assert (
        told["settings"]["same"].items()
        >= {"task": "a:B", "seed": 0, "lr": 0.1, "world_size": 2}.items()
    )
    sentence = told["recommendation"]
    assert sentence.startswith(
        "Take ddp: 200 samples/s, 100% ahead of zero3; half of the readings are within 200 to"
    )
    assert "where memory is short, zero3 needs 500 B" in sentence
    assert "each ran once: a repeat" in sentence
    close = make_report([made("ddp", speed=101), made("zero3", speed=100, strategy="zero3")])[
        "recommendation"
    ]
    assert close.startswith(
        "No difference in speed that can be told: ddp 101 samples/s (101 to 101), zero3 100"
    )
    assert (
        "50% slower" in sentence
        and "the same, so speed and memory decide" in sentence
        and "on CPUs" in sentence
    )


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
    assert found == "different curves"
    assert why.startswith(
        "apart from a: b (first step 0.0e+00, mean not a number, largest not a number at step 3)"
    )


def later(name: str, off: float, **plan: object) -> Run:
    """A run that is the same at the first two steps, and apart from there on."""
    run = made(name, **plan)
    for row in run.rows[2:5]:
        row["loss"] *= 1 + off
    return run


def test_a_curve_that_leaves_the_bound_later_is_the_same_only_as_far_as_one_rounding_leads() -> (
    None
):
    """Networks that choose go another way after one rounding, as this run of the first one's nudged
    weights did.
    """
    reference, apart = made("a"), later("b", 6.7e-3)
    found, why = verdict(reference, apart)
    assert (
        found == "close curves"
        and "later up to 6.7e-03 apart (b, step 5)" in why
        and "trainer parity" in why
    )
    nudged = later("nudged", 3e-3, weights="runs/parity/nudged-1/nudged-weights-1")
    found, why = verdict(reference, apart, nudged)
    assert found == "the same curve" and "which is what rounding does to this model" in why
    assert "4 times where nudged runs of a lead, 3.0e-03 at most" in why
    steady = later("nudged", 1e-7, weights="runs/parity/nudged-1/nudged-weights-1")
    assert verdict(reference, apart, steady)[0] == "different curves"
    assert verdict(nudged, reference, apart)[0] == "the same curve", "in any order"


def test_a_difference_that_comes_before_rounding_could_have_led_there_is_one() -> None:
    reference, nudged = made("a"), made("nudged", weights="x/nudged-weights-1")
    nudged.rows[4]["loss"] *= 1.01
    early, late = made("b"), made("b")
    early.rows[1]["loss"] *= 1.001
    late.rows[3]["loss"] *= 1.001
    assert verdict(reference, early, nudged)[0] == "different curves"
    assert verdict(reference, late, nudged)[0] == "the same curve"


def test_one_odd_run_leaves_the_others_comparable() -> None:
    told = make_report(odd_runs())
    main, other = told["groups"]
    assert (
        main["runs"] == ["ddp", "zero3", "killed", "unmeasured", "sparse"]
        and main["verdict"] == "the same curve"
    )
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
        "Of the 4 that ended with the same settings: no difference in speed that can be told: ddp and sparse 150"
    )
    shown = as_table({**told, "title": ""})
    assert "other settings: lr 0.1 -> 0.2, schedule_settings.gamma none -> 0.5" in shown


BUILT = {"optimizer_groups": [{"eps": 1e-8}], "schedule_class": "LambdaLR"}


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_that_decides_the_numbers_keeps_runs_apart(key: str) -> None:
    other: Any = [{"eps": 1e-6}] if key == "optimizer_groups" else "bf16"
    told = make_report([made("a", **BUILT), made("b", **{**BUILT, key: other})])
    if key == "optimizer_settings":  # the groups say what became of them
        assert len(told["groups"]) == 1
        told = make_report([made("a"), made("b", **{key: other})])
    differs = "optimizer_groups.0.eps" if key == "optimizer_groups" else key
    assert len(told["groups"]) == 2 and told["runs"][1]["differs"].keys() == {differs}
    assert told["recommendation"].startswith("No two runs train under the same settings")


@pytest.mark.parametrize(("schedule", "groups"), [("constant", 1), ("cosine", 2)])
def test_another_length_matters_to_a_schedule_that_falls_to_the_end(
    schedule: str, groups: int
) -> None:
    runs = [made(str(total), schedule=schedule, total_steps=total) for total in (5, 10)]
    assert len(make_report(runs)["groups"]) == groups


def test_three_forms(
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


def speeds(name: str, *readings: float, **plan: object) -> Run:
    """A run whose rows have these speeds, after a slow first one."""
    run = made(name, **plan)
    rows = [
        {"step": at, "samples": 64 * at, "seconds": 0.1 * at, "loss": 1.0, "samples_per_second": speed,
         "tokens_per_second": 10 * speed}
        for at, speed in enumerate((readings[0] / 9, *readings), 1)
    ]  # fmt: skip
    return replace(run, rows=rows)


def test_speeds_come_with_a_spread_and_from_one_place() -> None:
    """Those of the first step count in neither unit."""
    told = make_report([speeds("a", 100, 104, 96, 98, 102), made("b", lr=0.2)])
    [entry, _] = told["runs"]
    assert (entry["samples_per_second"], entry["samples_per_second_quartiles"]) == (100, [98, 102])
    assert (entry["tokens_per_second"], entry["tokens_per_second_quartiles"]) == (1000, [980, 1020])
    shown = as_table({**told, "title": ""})
    assert (
        "samples/s (middle half)" in shown
        and "100 (98-102)" in shown
        and "1000 (980-1020)" in shown
    )


def test_a_process_that_goes_on_has_a_first_step_of_its_own() -> None:
    run = speeds("a", 100, 100)
    again = [{**row, "step": row["step"] + 3} for row in run.rows]
    [entry, _] = make_report([replace(run, rows=[*run.rows, *again]), made("b")])["runs"]
    assert entry["samples_per_second"] == 100 and entry["samples_per_second_quartiles"] == [
        100,
        100,
    ]


@pytest.mark.parametrize(
    ("ddp", "fsdp", "answer"),
    [
        (
            (100, 120, 140),
            (90, 110, 130),
            "No difference in speed that can be told: ddp 120 samples/s (110 to 130), fsd",
        ),
        (
            (200, 210, 220),
            (90, 100, 110),
            "Take ddp: 210 samples/s, 110% ahead of fsdp; half of the readings are within",
        ),
        ((100, 101, 102), (97, 98, 99), "No difference in speed that can be told"),
    ],
)
def test_no_layout_is_taken_whose_speed_is_within_the_spread_of_another(
    ddp: tuple[float, ...], fsdp: tuple[float, ...], answer: str
) -> None:
    told = make_report([speeds("ddp", *ddp), speeds("fsdp", *fsdp, strategy="fsdp")])
    assert told["recommendation"].startswith(answer)


def test_repeats_of_one_run_are_not_chosen_among_and_say_what_noise_is() -> None:
    """Three repeats of one run on a shared machine: 792 to 1523 samples/s, each with a narrow
    spread.
    """
    repeats = [speeds(str(speed), speed - 5, speed, speed + 5) for speed in (792, 1201, 1523)]
    told = make_report(repeats)["recommendation"]
    assert told.startswith("One layout that ran 3 times: 792, 1201, 1523 samples/s, 92% apart")
    other = speeds("fsdp", 700, 702, 704, strategy="fsdp")
    assert make_report([*repeats, other])["recommendation"].startswith(
        "No difference in speed that can be told"
    )
    slow = speeds("fsdp", 300, 302, 304, strategy="fsdp")
    assert make_report([*repeats, slow])["recommendation"].startswith(
        "Take 792 and 1201 and 1523: 1201 samples/s, 298%"
    )


def test_the_best_value_is_shown_with_its_step() -> None:
    rows: list[dict[str, Any]] = [
        {"step": at, "eval/clean/accuracy": value} for at, value in ((2, 0.7), (4, 0.9), (6, 0.8))
    ]
    watched = made("a", best_metric="eval/clean/accuracy", best_mode="max")
    told = make_report(
        [
            replace(watched, rows=[*watched.rows, *rows, {"step": 6, "eval/recall/0": 0.5}]),
            made("b"),
        ]
    )
    assert told["runs"][0]["best"] == {"metric": "eval/clean/accuracy", "value": 0.9, "step": 4}
    shown = as_table({**told, "title": ""})
    assert (
        "eval/clean/accuracy 0.9000 at step 4" in shown
        and "0.8000" in shown
        and "recall" not in shown
    )


def test_runs_on_different_machines_are_said_to_be() -> None:
    here, there = ({"cpu": name, "cores": 2} for name in ("Abacus 3000", "Abacus 4000"))
    told = make_report([made("a", machine=here), made("b", speed=200, machine=there)])
    assert told["groups"][0]["verdict"] == "the same curve", "the machine decides no numbers"
    assert "; but not on the same machine: speed and memory say as much" in told["recommendation"]
    assert told["settings"]["different"] == {
        "machine.cpu": {"a": "Abacus 3000", "b": "Abacus 4000"}
    }
    assert told["settings"]["same"]["machine.cores"] == 2
    assert [run["machine"] for run in told["runs"]] == [
        "Abacus 3000 (2 cores)",
        "Abacus 4000 (2 cores)",
    ]
    for other in ({"machine": here}, {}):  # an older run does not say
        same = make_report([made("a", machine=here), made("b", speed=200, **other)])
        assert "not on the same machine" not in same["recommendation"]


def test_memory_that_another_phase_needs_beyond_training_is_said() -> None:
    run = made("a", memory=1000)
    phases = {"set-up": [3000, 2000], "training": [1000, 999], "saving": [900, 900]}
    memory = {
        phase: {"allocated": counts, "reserved": [5000, 5000]} for phase, counts in phases.items()
    }
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
    assert (
        told["runs"][0]["seconds"] == {}
        and told["runs"][0]["state"] == "did not end; last logged step 5"
    )
    assert told["recommendation"] == "One run alone: there is nothing to choose."


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
