"""The class TrainConfig made in code: settings that do not go together, and changed copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer.config.train_config import TrainConfig, every_steps
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"overwrite": True, "resume": "auto"},
            "overwrite: true: would delete what resume: auto goes on from",
        ),
        ({"allow_config_change": True}, "allow_config_change: true: has no effect without resume"),
        ({"keep_last": 0, "save_every": 2}, "save_every: 2: has no effect with keep_last: 0"),
        ({"keep_last": 0, "keep_every": 2}, "keep_every: 2: has no effect with keep_last: 0"),
        (
            {"optimizer_settings": {"amsgrad": True}},
            "has no effect on optimizer adamw, whose settings are keys; or name",
        ),
        ({"output_dir": "a\0b"}, "output_dir: 'a\\x00b': no path can hold a character of code 0"),
        ({"weights": "a\0b"}, "weights: 'a\\x00b': no path can hold"),
        ({"timeout_minutes": 1e300}, "timeout_minutes: 1e+300: must be greater than 0 and at most"),
        (
            {"epochs": 1, "max_steps": 2**63},
            "max_steps: 9223372036854775808: must be at least 1 and at most",
        ),
        ({"resume": ""}, "resume: '': must be 'none', 'auto' or the path of a checkpoint"),
    ],
)
def test_settings_that_do_not_go_together(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{"task": "a:B", "max_steps": 1, **wrong})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("value", "steps"), [(None, None), (7, 7), ("1 epoch", 30), ("3 epochs", 90)]
)
def test_every_steps(value: int | str | None, steps: int | None) -> None:
    assert every_steps(value, 30) == steps


def test_a_config_is_frozen_and_replaced_with_the_same_checks() -> None:
    config = TrainConfig(task="a:B", epochs=1)
    assert replace(config, accumulation_steps=4).accumulation_steps == 4
    with pytest.raises(ConfigError, match="accumulation_steps: 0: must be at least 1"):
        replace(config, accumulation_steps=0)
