"""How long a run is, and what follows from its length."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from layouts import Numbers

from trainer import ConfigError, TrainConfig
from trainer.building.length import last_step, stop_step
from trainer.checkpoint.store import Start
from trainer.config.interval import interval_of
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"epochs": 3}, 3 * 5),
        ({"max_steps": 7}, 7),
        ({"epochs": 3, "max_steps": 7}, 7),
        ({"epochs": 1, "max_steps": 7}, 5),
    ],
)
def test_the_earlier_of_epochs_and_max_steps_ends_a_run(
    settings: dict[str, Any], expected: int
) -> None:
    cut = Layout(rank=0, world_size=1, micro_batch_size=4, accumulation_steps=1)
    data = IndexedData(Numbers(20), cut, seed=0)
    config = TrainConfig(task="m:T", **settings)
    assert last_step(config, data, Start()) == expected


def test_stop_at_is_a_step_and_not_before_the_checkpoint() -> None:
    config = TrainConfig(task="m:T", max_steps=100, stop_at="0.5 epoch")
    assert stop_step(config, None, Start()) is None
    assert stop_step(config, interval_of("0.5 epoch", 5), Start()) == 3

    found: Any = SimpleNamespace(step=8, path="checkpoints/step-8")
    with pytest.raises(ConfigError, match=r"stop_at: .* ends the run at step 3, and checkp"):
        stop_step(config, interval_of("0.5 epoch", 5), Start(found=found))
