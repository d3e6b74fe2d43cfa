"""How long a run is, and what follows from its length."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Plain
from one_process import fit

from trainer import ConfigError, Data, TrainConfig, build, mixed
from trainer.run import Length


def length(folder: Path, **settings: Any) -> Length:
    """Return the length of a run over 64 samples, eight in a step."""
    given = {"task": "brought_tasks:Plain", "micro_batch_size": 8, **settings}
    return build(Plain(), TrainConfig(output_dir=str(folder), **given)).length


@pytest.mark.parametrize(
    ("settings", "total", "last"),
    [
        ({"epochs": 3}, 24, 24),
        ({"epochs": 3, "max_steps": 7}, 7, 7),
        ({"epochs": 1, "max_steps": 9}, 8, 8),
        ({"max_steps": 100, "stop_at": "0.6 epoch"}, 100, 5),
        ({"max_steps": 4, "stop_at": 9}, 4, 4),
    ],
)
def test_the_earliest_end_counts_and_stop_at_leaves_the_schedule(
    settings: dict[str, Any], total: int, last: int, tmp_path: Path
) -> None:
    found = length(tmp_path, **settings)
    assert (found.total_steps, found.last_step, found.finished) == (total, last, False)


@pytest.mark.parametrize("key", ["max_steps", "stop_at"])
def test_an_end_before_the_checkpoint_is_refused(key: str, tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4)
    with pytest.raises(ConfigError, match=rf"{key}: 3: ends the run at step 3, and .*step-0"):
        fit(tmp_path, resume="auto", **{"max_steps": 9, key: 3})


def test_epochs_of_a_mixture_without_an_end_are_refused(tmp_path: Path) -> None:
    class Endless(Plain):
        def build_data(self) -> Data:
            data = super().build_data()
            return dataclasses.replace(data, train=mixed({"rows": (data.train, 1.0)}))

    config = TrainConfig(
        task="brought_tasks:Plain", output_dir=str(tmp_path), micro_batch_size=8, epochs=1
    )
    with pytest.raises(ConfigError, match="epochs: 1: the training data has no known end"):
        build(Endless(), config)
