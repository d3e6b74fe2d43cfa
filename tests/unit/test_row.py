"""The order of the hooks of a run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import trainer.checks
import trainer.row
from trainer import Callback, TrainConfig
from trainer.row import checks_of, row_of

PLAIN = [
    "Clock",
    "Stopping",
    "Log",
    "Evaluation",
    "MeanLoss",
    "SameSettings",
    "SameData",
    "SupportedModel",
    "SameModel",
    "DivisibleOptimizer",
    "KeptRates",
    "ExchangedGradients",
    "EditedParameters",
    "TrainableSet",
    "TrainingMode",
    "TaskState",
    "MetricsFile",
    "Progress",
    "FiniteNumbers",
    "SanityEvaluation",
    "SaveCheckpoints",
]


class Mine(Callback):
    """A hook of a user."""


def row(*added: Callback, **settings: Any) -> list[Callback]:
    return row_of(TrainConfig(task="m:T", max_steps=4, **settings), added, {})


def names(*added: Callback, **settings: Any) -> list[str]:
    return [type(hook).__name__ for hook in row(*added, **settings)]


def test_the_built_in_hooks_have_one_order() -> None:
    assert names() == PLAIN


def test_without_checks_the_other_hooks_stay() -> None:
    assert names(checks="none") == PLAIN[:4] + PLAIN[16:]


def test_buffers_of_steps_that_are_left_out_come_first() -> None:
    assert names(on_nan="skip") == ["SkippedBuffers", *PLAIN]


@pytest.mark.parametrize(
    ("settings", "hook"),
    [
        ({"best_metric": "eval/loss", "eval_every": 1}, "Best"),
        ({"max_time": "1h"}, "TimeLimit"),
        ({"trackers": ["tensorboard"]}, "Tracking"),
        ({"profile_steps": "2-3"}, "Profile"),
    ],
)
def test_a_key_adds_its_hook_behind_what_a_run_writes(settings: dict[str, Any], hook: str) -> None:
    assert names(**settings) == [*PLAIN[:-2], hook, *PLAIN[-2:]]


def test_without_a_sanity_evaluation_its_hooks_are_left_out() -> None:
    without = [name for name in PLAIN if name not in ("MeanLoss", "SanityEvaluation")]
    assert names(sanity_evaluation=False) == without


def test_added_hooks_come_behind_all_others_but_the_one_that_saves() -> None:
    settings: dict[str, Any] = {"max_time": "1h"}
    assert names(Mine(), **settings)[-4:] == [
        "TimeLimit",
        "Mine",
        "SanityEvaluation",
        "SaveCheckpoints",
    ]
    assert names(Mine()) == [*PLAIN[:-2], "Mine", *PLAIN[-2:]]


def test_every_check_is_in_the_row_once_and_no_run_shares_one() -> None:
    """A check behind a key is not in the row of every run."""
    made = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(Path(trainer.row.__file__).read_text()))
        if isinstance(node, ast.Call)
    ]
    hooks = []
    for path in Path(trainer.checks.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and "Callback" in map(ast.unparse, node.bases):
                hooks.append(node.name)
    assert [made.count(name) for name in hooks] == [1] * len(hooks)
    whole = names(on_nan="skip")
    assert max(map(whole.count, hooks)) == 1
    config = TrainConfig(task="m:T", max_steps=4)
    one, other = checks_of(config), checks_of(config)
    assert not [check for check in one if check in other]
