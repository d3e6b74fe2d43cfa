"""Configs loaded from a command line, and the problems of those that cannot be."""

from __future__ import annotations

import pytest

from trainer.config.annotations import annotations_of
from trainer.config.load import load_config
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError

KEYS = sorted(annotations_of(TrainConfig))


def problems(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(argv)
    return str(caught.value).splitlines()


def load(*argv: str) -> TrainConfig:
    return load_config(["--task", "a:B", "--max_steps", "10", *argv]).config
