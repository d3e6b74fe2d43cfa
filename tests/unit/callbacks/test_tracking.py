"""Names of trackers, keys that contradict each other, what is logged, and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_run import fake_run
from origins import origin

from trainer import Callback, Run, StepInfo
from trainer.callbacks.tracking import Tracking, named, tracked_values, without_secrets
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError
from trainer.row import row_of


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("wandbb", "no tracker of Accelerate; did you mean 'wandb'?"),
        ("comet_ml", "its package is not installed: pip install comet-ml"),
    ],
)
def test_a_tracker_that_is_unknown_or_not_installed_is_an_error(name: str, rule: str) -> None:
    origins = {"trackers": origin("train.yaml:3 (trackers)")}
    with pytest.raises(ConfigError, match=f"train.yaml:3: trackers: '{name}': ") as caught:
        row_of(TrainConfig(task="a:B", max_steps=1, trackers=[name]), [], origins)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"profile_steps": "1-3"}, "from 2 \\(the first warms up"),
        ({"profile_steps": "5-4"}, "must be steps such as 10-12"),
        ({"profile_steps": "20-22"}, "to max_steps"),
        ({"trackers": ["wandb", "wandb"]}, "has a name twice"),
    ],
)
def test_keys_that_contradict_each_other_are_an_error(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        TrainConfig(task="a:B", max_steps=9, **values)


def test_secrets_are_left_out_of_a_configuration() -> None:
    values = {
        "lr": 1,
        "hub_token": "x",
        "max_tokens": 5,
        "deep": {"API-KEY": "x", "key": 1, "password": "x"},
    }
    assert without_secrets(values) == {"lr": 1, "max_tokens": 5, "deep": {"key": 1}}


def test_a_tracker_gets_the_axes_once_and_training_and_evaluation_by_their_prefixes() -> None:
    metrics = {"step": 3, "epoch": 0.5, "samples": 24, "loss": 1.5, "lr": 0.1}
    info: Any = SimpleNamespace(
        step=3, epoch=0.5, samples=24, metrics=metrics, evaluation={"eval/loss": 2.0}
    )
    axes = {"step": 3, "epoch": 0.5, "samples": 24}
    assert tracked_values(info) == {**axes, "eval/loss": 2.0, "train/loss": 1.5, "train/lr": 0.1}
    info.metrics = None
    assert tracked_values(info) == {**axes, "eval/loss": 2.0}


@pytest.mark.parametrize(
    ("tracker", "run_name", "told"),
    [
        ("trackio", None, ("samecurve", {"name": "a b", "embed": False})),
        ("trackio", "{lr}", ("samecurve", {"name": "a b", "embed": False})),
        ("mlflow", "{lr}", ("samecurve", {"run_name": "a b"})),
        ("tensorboard", None, ("samecurve", {})),
        ("tensorboard", "{lr}", ("a-b", {})),  # its runs are folders
        ("aim", "{lr}", ("a b", {"experiment": "samecurve"})),
        ("clearml", "{lr}", ("samecurve", {"task_name": "a b"})),
        ("swanlab", None, ("samecurve", {})),
    ],
)
def test_each_tracker_is_told_the_name_of_the_run(
    tracker: str, run_name: str | None, told: tuple[str, dict[str, Any]]
) -> None:
    config = TrainConfig(task="a:B", max_steps=1, run_name=run_name)
    run: Any = SimpleNamespace(config=config, name="a b")
    assert named(tracker, run) == told


def test_a_tracker_that_takes_no_name_is_a_notice() -> None:
    run = fake_run(config=TrainConfig(task="a:B", max_steps=1, run_name="x"))
    tracking = Tracking([], origin=origin("train.yaml:3 (trackers)"))
    tracking.names = ["dvclive", "tensorboard"]
    tracking.on_data(run)
    assert run.noted == ["run_name: Accelerate's tracker dvclive takes none"]


class Pictures(Callback):
    """Shows before the trackers start, at each step, and after they have ended."""

    def on_start(self, run: Run) -> None:
        run.show("early", torch.zeros(1, 1, 4, 4))

    def on_step(self, run: Run, info: StepInfo) -> None:
        run.show("step", torch.zeros(1, 1, 4, 4))

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        run.show("late", torch.zeros(1, 1, 4, 4))
