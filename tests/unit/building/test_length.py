"""How long a run is, and what follows from its length."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from layouts import Numbers
from origins import origin
from torch import nn

from trainer import ConfigError, TrainConfig
from trainer.building.length import (
    epoch_end_notices,
    last_step,
    most_checkpoints,
    profile_notices,
    stop_step,
)
from trainer.checkpoint import Start
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


@pytest.mark.parametrize(
    ("value", "step"), [(None, None), (7, 7), ("2 epochs", 10), ("0.5 epoch", 3)]
)
def test_stop_at_is_a_step_or_epochs(value: Any, step: int | None) -> None:
    config = TrainConfig(task="m:T", max_steps=100, stop_at=value)
    assert stop_step(config, 5, Start(), {}) == step


def test_stop_at_within_the_first_step_is_refused_at_its_line() -> None:
    config = TrainConfig(task="m:T", max_steps=100, stop_at="0.1 epoch")
    at = origin("a.yaml:7")
    with pytest.raises(
        ConfigError, match=r"a\.yaml:7: stop_at: '0\.1 epoch': is shorter than one step"
    ):
        stop_step(config, 5, Start(), {"stop_at": at})


def test_a_checkpoint_behind_stop_at_is_refused() -> None:
    found = SimpleNamespace(manifest={"step": 8, "samples": 32}, path="checkpoints/step-00000008")
    config = TrainConfig(task="m:T", max_steps=100, stop_at=7)
    with pytest.raises(ConfigError, match="stop_at: 7: ends the run at step 7, and checkpoints/st"):
        stop_step(config, 5, Start(found=found), {})  # type: ignore[arg-type]


def test_checkpoints_that_are_there_at_once_are_counted() -> None:
    config = TrainConfig(task="m:T", max_steps=100, keep_last=2, keep_every=40)
    assert most_checkpoints(config, interval_of(10, None), 100) == 3 + 2
    assert most_checkpoints(config, None, 100) == 1 + 2
    assert most_checkpoints(config, interval_of("1/4 epoch", 98), 100) == 3 + 2
    assert most_checkpoints(config, interval_of("1/4 epoch", 398), 100) == 2 + 2


def test_steps_that_are_none_of_the_run_are_not_profiled_silently() -> None:
    assert profile_notices("10-12", 0, 20) == []
    assert profile_notices(None, 0, 20) == []
    [notice] = profile_notices("10-12", 10, 20)
    assert notice.endswith("nothing is traced: this run begins at step 10, ends at 20")


@pytest.mark.parametrize(
    ("world_size", "size", "steps", "rank"),
    [
        (2, 9, 10, 1),
        (2, 12, 10, None),
        (4, 22, 10, 0),
        (3, 26, 10, 1),
        (1, 9, 10, 0),
        (1, 8, 10, None),
        (2, 9, 1, None),
    ],
)
def test_one_example_for_a_batch_norm_is_told_before_the_first_step(
    world_size: int, size: int, steps: int, rank: int | None
) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.BatchNorm2d(4))
    cut = Layout(rank=0, world_size=world_size, micro_batch_size=4, accumulation_steps=1)
    data = IndexedData(Numbers(size), cut, seed=0)
    told = epoch_end_notices(model, data, steps)
    assert [line.split(" one example")[0] for line in told] == (
        [] if rank is None else [f"the last step of an epoch gives rank {rank}"]
    )
    model[1].eval()
    assert epoch_end_notices(model, data, steps) == [], "what stays in evaluation mode takes it"
