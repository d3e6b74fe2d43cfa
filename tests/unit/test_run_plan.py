"""The plan: values that follow from others, and what is written to plan.json."""

from __future__ import annotations

import json

from plans import SAID, plan


def test_origins_are_of_what_was_set() -> None:
    made = plan(lr=0.5)
    assert str(made.origin("lr")) == f"{SAID} (lr)"
    assert str(made.origin("no such key")) == "TrainConfig (no such key)"


def test_a_warm_up_by_fraction_gets_its_steps_with_the_length_of_the_run() -> None:
    assert plan(warmup_fraction=0.1).with_length(200).warmup_steps == 20
    assert plan(warmup_fraction=0.1).with_length(3).warmup_steps == 1, "at least one"


def test_what_is_written_to_plan_json_is_json() -> None:
    made = plan(lr=0.5)
    written = json.loads(json.dumps(made.as_dict()))
    assert written["origins"]["lr"] == f"{SAID} (lr)"
    assert written["precision"] == made.precision
