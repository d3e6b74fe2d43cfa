"""Trackers that are not there, keys that do not go together, and secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit, log_of
from origins import origin

from trainer.callbacks.tracking import without_secrets
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
def test_trackers_that_are_not_there(name: str, rule: str) -> None:
    origins = {"trackers": origin("train.yaml:3 (trackers)")}
    with pytest.raises(ConfigError, match=f"train.yaml:3: trackers: '{name}': ") as caught:
        row_of(TrainConfig(task="a:B", max_steps=1, trackers=[name]), [], origins)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"profile_steps": "1-3"}, "from 2 on: the first step warms up"),
        ({"profile_steps": "5-4"}, "must be steps such as 10-12"),
        ({"profile_steps": "20-22"}, "begins behind the last step, max_steps 9"),
        ({"track_model": True}, "needs wandb among the trackers"),
        ({"trackers": ["wandb", "wandb"]}, "names one twice"),
    ],
)
def test_keys_that_do_not_go_together(values: dict[str, Any], rule: str) -> None:
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


@pytest.mark.usefixtures("fresh_accelerate")
def test_steps_that_are_none_of_the_run_are_not_profiled_without_a_word(tmp_path: Path) -> None:
    """Of a run whose length only its data say."""
    fit(tmp_path, max_steps=None, epochs=1, profile_steps="20-22")
    assert (
        "note: profile_steps 20-22: nothing is traced: this run begins at step 0, ends at 3"
        in log_of(tmp_path)
    )
