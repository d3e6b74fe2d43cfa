"""``trainer compare``: groups, the verdict on their curves, and what the report says of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_runs import made, odd_runs, with_speeds

from trainer.commands.compare.present import as_table
from trainer.commands.compare.report import make_report
from trainer.commands.runs import Run
from trainer.config.fingerprint import SETTINGS


def verdict(*runs: Run) -> tuple[str, str]:
    [group] = make_report(runs)["groups"]
    return group["verdict"], group["why"]


def test_runs_with_equal_settings_and_curves() -> None:
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


def test_a_curve_that_drifts_away_is_different() -> None:
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


def test_curve_beyond_the_bound_is_rounding_if_nudged_runs_stray_as_far() -> None:
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


def test_curve_that_strays_earlier_than_nudged_runs_is_different() -> None:
    reference, nudged = made("a"), made("nudged", weights="x/nudged-weights-1")
    nudged.rows[4]["loss"] *= 1.01
    early, late = made("b"), made("b")
    early.rows[1]["loss"] *= 1.001
    late.rows[3]["loss"] *= 1.001
    assert verdict(reference, early, nudged)[0] == "different curves"
    assert verdict(reference, late, nudged)[0] == "the same curve"


def test_unusual_runs_leave_the_others_comparable() -> None:
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
def test_each_setting_that_decides_the_numbers_splits_groups(key: str) -> None:
    other: Any = [{"eps": 1e-6}] if key == "optimizer_groups" else "bf16"
    told = make_report([made("a", **BUILT), made("b", **{**BUILT, key: other})])
    if key == "optimizer_settings":  # the groups say what became of them
        assert len(told["groups"]) == 1
        told = make_report([made("a"), made("b", **{key: other})])
    differs = "optimizer_groups.0.eps" if key == "optimizer_groups" else key
    assert len(told["groups"]) == 2 and told["runs"][1]["differs"].keys() == {differs}
    assert told["recommendation"].startswith("No two runs train under the same settings")


@pytest.mark.parametrize(("schedule", "groups"), [("constant", 1), ("cosine", 2)])
def test_total_steps_split_groups_where_the_schedule_depends_on_them(
    schedule: str, groups: int
) -> None:
    runs = [made(str(total), schedule=schedule, total_steps=total) for total in (5, 10)]
    assert len(make_report(runs)["groups"]) == groups


def test_speeds_have_quartiles_and_leave_the_first_step_out() -> None:
    """Those of the first step count in neither unit."""
    told = make_report([with_speeds("a", 100, 104, 96, 98, 102), made("b", lr=0.2)])
    [entry, _] = told["runs"]
    assert (entry["samples_per_second"], entry["samples_per_second_quartiles"]) == (100, [98, 102])
    assert (entry["tokens_per_second"], entry["tokens_per_second_quartiles"]) == (1000, [980, 1020])
    shown = as_table({**told, "title": ""})
    assert (
        "samples/s (middle half)" in shown
        and "100 (98-102)" in shown
        and "1000 (980-1020)" in shown
    )


def test_first_step_of_a_resumed_run_does_not_count_for_speed() -> None:
    run = with_speeds("a", 100, 100)
    again = [{**row, "step": row["step"] + 3} for row in run.rows]
    [entry, _] = make_report([replace(run, rows=[*run.rows, *again]), made("b")])["runs"]
    assert entry["samples_per_second"] == 100 and entry["samples_per_second_quartiles"] == [
        100,
        100,
    ]


def test_best_metric_is_reported_with_its_step() -> None:
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


def test_each_evaluation_set_with_a_loss_has_a_curve() -> None:
    several = made("a")
    rows: list[dict[str, Any]] = [
        {"step": 2, "samples": 128, "eval/clean/loss": 1.5, "eval/clean/recall/3": 0.5},
        {"step": 4, "samples": 256, "eval/clean/loss": 1.25, "eval/noisy/loss": None},
        {"step": 5, "samples": 320, "eval/noisy/accuracy": 0.5},
    ]
    told = make_report([replace(several, rows=[*several.rows[:-1], *rows]), made("b")])
    curves, of_other = (run["curves"] for run in told["runs"])
    assert curves["eval"] == [] and of_other.keys() == {"train", "eval"}
    assert curves["eval/clean"] == [[2, 128, pytest.approx(0.2), 1.5], [4, 256, 0.4, 1.25]]
    assert curves.keys() == {"train", "eval", "eval/clean"}
    final = told["runs"][0]["final"]
    assert final["eval/clean/loss"] == 1.25 and final["eval/noisy/accuracy"] == 0.5


def test_different_machines_are_reported() -> None:
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


def test_memory_of_a_phase_beyond_training_is_reported() -> None:
    run = made("a", memory=1000)
    phases = {"set-up": [3000, 2000], "training": [1000, 999], "saving": [1009, 900]}
    memory = {
        phase: {"allocated": counts, "reserved": [5000, 5000]} for phase, counts in phases.items()
    }
    told = make_report([replace(run, summary={**run.summary, "memory": memory}), made("b")])
    assert told["runs"][0]["memory"] == {"set-up": 3000, "training": 1000, "saving": 1009}
    assert "a: more memory than in training: set-up 2.9 KiB\n" in as_table({**told, "title": ""})
