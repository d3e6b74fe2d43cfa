"""The best run: by best_metric, or by the metric that was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_runs import made

from trainer.commands.compare.present import as_table
from trainer.commands.compare.report import make_report
from trainer.commands.runs import Run
from trainer.errors import ConfigError


def evaluated(name: str, *values: float | None, **plan: Any) -> Run:
    """A run that evaluated at the steps 10, 20 and so on."""
    plan = {"best_metric": "eval/accuracy", "best_mode": "max", "lr": 0.1} | plan
    run = made(name, **plan)
    rows = [row for row in run.rows if "loss" in row]
    for number, value in enumerate(values, 1):
        rows.append({"step": 10 * number, "samples": 640 * number, "eval/accuracy": value})
    return replace(run, rows=rows)


def best(*runs: Run, **by: Any) -> str:
    return str(make_report(runs, **by)["best"])


def test_the_best_of_all_evaluations_counts_with_its_first_step() -> None:
    runs = evaluated("a", 0.8, 0.9, 0.7), evaluated("b", 0.95, 0.95, None, lr=0.2)
    assert best(*runs) == "Best by eval/accuracy (max): b, 0.95 at step 10."


def test_the_smallest_is_the_best_by_mode_min() -> None:
    runs = [evaluated(name, value, best_mode="min") for name, value in (("a", 0.1), ("b", 0.2))]
    assert best(*runs) == "Best by eval/accuracy (min): a, 0.1 at step 10."


def test_runs_that_are_equal_are_all_named() -> None:
    runs = evaluated("a", 0.9), evaluated("b", 0.1, 0.9, lr=0.2), evaluated("c", 0.8)
    assert best(*runs) == (
        "Best by eval/accuracy (max): 2 runs are equal with 0.9: a at step 10, b at step 20."
    )


def test_runs_without_an_evaluation_are_listed() -> None:
    failed = Run(name="failed", path="failed", error="out of memory")
    runs = evaluated("a", 0.9), evaluated("none"), evaluated("nan", None), failed
    assert best(*runs) == (
        "Best by eval/accuracy (max): a, 0.9 at step 10; "
        "without an evaluation by it: none, nan, failed."
    )
    assert best(evaluated("a"), evaluated("b")) == (
        "Best by eval/accuracy (max): none has logged it."
    )


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({"best_metric": "eval/loss", "best_mode": "min"}, "eval/loss (min) in b"),
        ({"best_mode": "min"}, "eval/accuracy (min) in b"),
        ({"best_metric": None}, ""),
    ],
)
def test_runs_with_different_metrics_name_none(other: dict[str, Any], shown: str) -> None:
    text = best(evaluated("a", 0.9), evaluated("b", 0.8, **other))
    if shown:
        assert text == (
            "Best: not named, for the runs differ in best_metric: eval/accuracy (max) in a; "
            f"{shown}. --by eval/loss --mode min names one"
        )
    else:  # it was evaluated, and only kept no model
        assert text == "Best by eval/accuracy (max): a, 0.9 at step 10."


def test_by_goes_before_best_metric_and_takes_its_mode_where_it_is_known() -> None:
    runs = evaluated("a", 0.9), evaluated("b", 0.8, best_metric="eval/loss", best_mode="min")
    assert best(*runs, by="eval/accuracy") == "Best by eval/accuracy (max): a, 0.9 at step 10."
    assert best(*runs, by="eval/accuracy", mode="min").endswith("(min): b, 0.8 at step 10.")
    assert make_report(runs, by="eval/accuracy")["runs"][1]["best"]["value"] == 0.8


@pytest.mark.parametrize(
    ("by", "rule"),
    [
        ({"by": "eval/acuracy"}, "no run has logged it; did you mean 'eval/accuracy'?"),
        ({"by": "loss"}, "add --mode min or --mode max"),
        ({"mode": "min"}, "needs --by"),
    ],
)
def test_mistakes_in_by_and_mode(by: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_report([evaluated("a", 0.9), evaluated("b", 0.8)], **by)
    assert rule in str(caught.value)


def test_nothing_is_said_without_a_metric_or_another_run() -> None:
    assert best(evaluated("a", 0.9)) == ""
    assert best(made("a"), made("b")) == ""


def test_a_sweep_is_one_table_of_what_differs() -> None:
    runs = [
        evaluated(f"lr{lr}-s{seed}", 0.9 + lr, lr=lr, seed=seed)
        for lr in (0.01, 0.02)
        for seed in (0, 1)
    ]
    shown = as_table(make_report(runs) | {"title": ""}).splitlines()
    heading = shown[0].split()
    assert sorted(heading[1:3]) == ["lr", "seed"]
    assert not {"strategy", "world", "states", "sent"} & set(heading)
    assert shown[1].split()[0] == "lr0.01-s0" and "eval/accuracy 0.9100 at step 10" in shown[1]
    assert not any("settings that differ" in line or "other settings" in line for line in shown)
    assert shown[-1] == (
        "Best by eval/accuracy (max): 2 runs are equal with 0.92: "
        "lr0.02-s0 at step 10, lr0.02-s1 at step 10."
    )


def test_runs_under_several_strategies_keep_their_tables() -> None:
    runs = [evaluated("a", 0.9), evaluated("b", 0.8, lr=0.2, strategy="fsdp")]
    shown = as_table(make_report(runs) | {"title": ""})
    assert "settings that differ\n" in shown and shown.split()[1] == "strategy"
