"""Optimizer and scheduler of a DeepSpeed JSON: what is read, and what cannot run."""

from __future__ import annotations

from typing import Any

import pytest
from plans import OPTIMIZER, SCHEDULER, section

from trainer import ConfigError

# One line for each rule: the section, its type, its settings, and the message.
MISTAKES: list[tuple[str, str, dict[str, Any], str]] = [
    ("optimizer", "Lion", {}, "ds.json:12: optimizer.type: 'Lion': must be one of adamw, adam, "),
    ("optimizer", "AdamW", {"lr": -1e-4}, f"{OPTIMIZER}.lr: -0.0001: must be greater than 0"),
    ("optimizer", "AdamW", {"freeze_step": 3}, f"{OPTIMIZER}.freeze_step: 3: unknown key"),
    ("optimizer", "AdamW", {"bias_correction": False}, f"{OPTIMIZER}.bias_correction: false: must"),
    ("scheduler", "WarmupDecayLr", {}, "ds.json:22: scheduler.type: 'WarmupDecayLr': must be one"),
    ("scheduler", "WarmupLR", {"warmup_type": "cubic"}, f"{SCHEDULER}.warmup_type: 'cubic': must"),
    ("scheduler", "WarmupLR", {"warmup_min_lr": 0.1}, f"{SCHEDULER}.warmup_min_lr: 0.1: must be 0"),
]


@pytest.mark.parametrize(
    ("name", "kind", "params", "line"), MISTAKES, ids=[line for *_, line in MISTAKES]
)
def test_sections_that_cannot_run(name: str, kind: str, params: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(name, kind, params)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "params", "name", "decay"),
    [
        ("AdamW", {}, "adamw", 0.0),
        ("AdamW", {"torch_adam": True, "adam_w_mode": True}, "adamw", None),
        ("Adam", {"bias_correction": True}, "adamw", 0.0),
        ("adam", {"adam_w_mode": False}, "adam", 0.0),
        ("SGD", {"nesterov": False}, "sgd", 0.0),
    ],
)
def test_names_and_defaults_of_optimizers(
    kind: str, params: dict[str, Any], name: str, decay: float | None
) -> None:
    """torch's AdamW has the weight decay of the training config by default."""
    found = section("optimizer", kind, params)
    assert found.pop("optimizer").value == name
    assert all(value.origin.is_default for value in found.values())
    default = found.get("weight_decay")
    assert (default and default.value) == decay
    assert ("momentum" in found) == (name == "sgd")
