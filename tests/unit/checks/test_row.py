"""The checks that a config asks for."""

from __future__ import annotations

import ast
from pathlib import Path

import trainer.checks
from trainer import Callback, TrainConfig
from trainer.checks.row import checks_of

FOLDER = Path(trainer.checks.__file__).parent
# These two have keys of their own, and places of their own in the row of a run.
ELSEWHERE = {"FiniteNumbers", "ReplicaCheck"}


def checks(setting: str) -> list[Callback]:
    return checks_of(TrainConfig(task="m:T", max_steps=4, checks=setting))


def test_every_check_of_the_folder_is_in_the_row_once() -> None:
    hooks = []
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and "Callback" in map(ast.unparse, node.bases):
                hooks.append(node.name)
    names = [type(check).__name__ for check in checks("all")]
    assert sorted(names) == sorted(set(hooks) - ELSEWHERE)


def test_the_earliest_events_come_first() -> None:
    events = ("on_launch", "on_data", "on_model", "on_optimizer", "before_update", "on_step")
    overridden = []
    for check in checks("all"):
        first = [event for event in events if event in vars(type(check))]
        overridden += first[:1]
    assert overridden == sorted(overridden, key=events.index)


def test_checks_none_leaves_all_of_them_out() -> None:
    assert checks("none") == []


def test_no_run_shares_a_check_with_another_one() -> None:
    one, other = checks("all"), checks("all")
    assert not [check for check in one if check in other]
