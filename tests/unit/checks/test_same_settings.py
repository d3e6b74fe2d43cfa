"""Ranks that were started with other settings."""

from __future__ import annotations

from typing import Any

import pytest
from fake_run import TwoRanks, fake_run
from plans import plan

from trainer import ConfigError, TrainConfig
from trainer.checks.same_settings import SameSettings

PLAN = plan(lr=0.1)


def run_with(agreement: Any) -> Any:
    config = TrainConfig(task="m:T", max_steps=10, lr=0.1)
    return fake_run(agreement=agreement, config=config, plan=PLAN, task_facts={"size": 64})


@pytest.mark.parametrize("key", ["files", "origins", "notices", "launcher"])
def test_how_each_machine_was_started_may_differ(key: str) -> None:
    compared: list[dict[str, str]] = []

    def other_rank(value: Any) -> Any:
        compared.append(value)
        return (None, 0) if isinstance(value, tuple) else {**value, "size": "other"}

    with pytest.raises(ConfigError, match="rank 1: size is other"):
        SameSettings().on_launch(run_with(TwoRanks(other_rank)))
    assert key in PLAN.as_dict()
    assert not [fact for fact in compared[-1] if fact.startswith(f"plan.{key}")]
