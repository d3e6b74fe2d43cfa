"""The order of the hooks of a run."""

from __future__ import annotations

from typing import Any

import pytest

from trainer import Callback, TrainConfig
from trainer.row import row_of

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


def test_added_hooks_come_behind_all_others_but_the_one_that_saves() -> None:
    settings: dict[str, Any] = {"max_time": "1h"}
    assert names(Mine(), **settings)[-4:] == [
        "TimeLimit",
        "Mine",
        "SanityEvaluation",
        "SaveCheckpoints",
    ]
    assert names(Mine()) == [*PLAIN[:-2], "Mine", *PLAIN[-2:]]
