"""Keys that change nothing: accepted, and noted with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from plans import SAID, plan

from trainer.config.no_effect import unused_by_optimizer, without_effect
from trainer.config.train_config import DEFAULTS, TrainConfig


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"allow_config_change": True}, "allow_config_change: has no effect without resume"),
        ({"keep_last": 0, "save_every": 2}, "save_every: has no effect with keep_last: 0"),
        ({"keep_last": 0, "keep_every": 2}, "keep_every: has no effect with keep_last: 0"),
        ({"reference_batch_size": 8}, "reference_batch_size: has no effect without lr_scaling"),
        ({"lr_scaling": "sqrt"}, "lr_scaling: has no effect without reference_batch_size"),
        ({"early_stop_patience": 2}, "early_stop_patience: has no effect without best_metric"),
        ({"hub_private": True}, "hub_private: has no effect without push_to_hub"),
        ({"track_model": True}, "track_model: has no effect without wandb"),
        ({"momentum": 0.5}, "momentum: has no effect on optimizer adamw"),
        ({"optimizer": "sgd", "eps": 1e-6}, "eps: has no effect on optimizer sgd"),
        (
            {"optimizer": "torch.optim.NAdam", "betas": (0.8, 0.9)},
            "betas: has no effect on optimizer torch.optim.NAdam; write it into optimizer_settings",
        ),
        ({"final_lr_ratio": 0.1}, "final_lr_ratio: has no effect on schedule constant"),
    ],
)
def test_a_key_without_effect_is_a_notice_of_the_plan(settings: dict[str, Any], note: str) -> None:
    [notice] = [line for line in plan(**settings).notices if "has no effect" in line]
    assert notice.startswith(f"{SAID}: {note}")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"allow_config_change": True, "resume": "auto"},
        {"lr_scaling": "linear", "reference_batch_size": 8},
        {"optimizer": "sgd", "momentum": 0.5},
        {"schedule": "cosine", "final_lr_ratio": 0.1},
        {"early_stop_patience": 2, "best_metric": "eval/loss"},
    ],
)
def test_keys_with_an_effect_are_not_noted(settings: dict[str, Any]) -> None:
    config = TrainConfig(task="a:B", epochs=1, **settings)
    optimizer, schedule = config.optimizer or "adamw", config.schedule or "constant"
    assert list(without_effect(config, optimizer=optimizer, schedule=schedule)) == []


def test_each_optimizer_uses_the_keys_that_it_does_not_leave_out() -> None:
    assert unused_by_optimizer(None) == unused_by_optimizer("adam") == ("momentum",)
    assert unused_by_optimizer("sgd") == ("betas", "eps")
    assert set(unused_by_optimizer("torch.optim.Muon")) == {"betas", "eps", "momentum"}
    assert {*unused_by_optimizer("torch.optim.Muon")} <= set(DEFAULTS)
