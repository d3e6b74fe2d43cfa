"""The class TrainConfig made in code: the same checks as a file's, and changed copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError


def test_a_config_made_in_code_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(task="a", epochs=0, betas=(0.9, 2.0))
    assert str(caught.value).splitlines() == [
        "TrainConfig: epochs: 0: must be at least 1",
        "TrainConfig: betas.1: 2.0: must be less than 1",
        "TrainConfig: task: 'a': must be module:Class, such as digits_cnn:DigitsCNN",
    ]


def test_a_config_is_frozen_and_replaced_with_the_same_checks() -> None:
    config = TrainConfig(task="a:B", epochs=1)
    assert replace(config, accumulation_steps=4).accumulation_steps == 4
    with pytest.raises(ConfigError, match="accumulation_steps: 0: must be at least 1"):
        replace(config, accumulation_steps=0)
