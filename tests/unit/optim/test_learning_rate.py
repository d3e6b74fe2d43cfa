"""Learning-rate schedules: their shape over optimizer steps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import plan

from trainer import ConfigError
from trainer.config.schedule_keys import SCHEDULES, TO_FINAL
from trainer.optim.learning_rate import build_schedule, lr_factor
from trainer.run_plan import Plan

SETTINGS: dict[str, dict[str, Any]] = {
    "step": {"milestones": [12, 6], "gamma": 0.5},
    "wsd": {"decay_fraction": 0.25},
}


def rates(made: Plan, steps: int, lr: float = 1.0) -> list[float]:
    """The rate of each optimizer step, stepped as the loop does it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = build_schedule(optimizer, made, steps)
    got = []
    for _ in range(steps):
        got.append(float(schedule.get_last_lr()[0]))
        assert got[-1] == optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
    return got


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_shape_of_each(name: str) -> None:
    factor = lr_factor(
        name, SETTINGS.get(name, {}), warmup_steps=4, total_steps=20, final_ratio=0.1
    )
    got = [factor(step) for step in range(21)]
    assert got[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    expected = {
        "constant": [1.0] * 16,
        "linear": [1 - 0.9 * k / 16 for k in range(1, 17)],
        "cosine": [0.1 + 0.45 * (1 + math.cos(math.pi * k / 16)) for k in range(1, 17)],
        "step": [1.0, *[0.5] * 6, *[0.25] * 9],
        "wsd": [*[1.0] * 11, *[1 - 0.9 * k / 5 for k in range(1, 6)]],
        "inverse_sqrt": [math.sqrt(5 / (k + 1)) for k in range(5, 21)],
    }
    assert got[5:] == pytest.approx(expected[name])


def test_a_logarithmic_warm_up_has_the_shape_of_deepspeeds() -> None:
    """Without its first two steps, whose rate is zero."""
    from deepspeed.runtime.lr_schedules import WarmupLR

    factor = lr_factor("constant", {"warmup_type": "log"}, warmup_steps=6, total_steps=9)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = WarmupLR(optimizer, warmup_num_steps=8)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        theirs.step()
    assert rates[:2] == [0, 0]
    assert [factor(step) for step in range(8)] == pytest.approx(rates[2:])


def test_a_schedule_of_torch_with_and_without_warm_up() -> None:
    settings = {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.5}}
    assert rates(plan(**settings), 4, lr=8.0) == [8.0, 4.0, 2.0, 1.0]
    assert rates(plan(**settings, warmup_steps=3), 6, lr=8.0) == [2.0, 4.0, 6.0, 8.0, 4.0, 2.0]


def test_a_schedule_that_follows_a_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="'torch:ReduceLROnPlateau': follows a metric"):
        rates(plan(schedule="torch:ReduceLROnPlateau"), 1, lr=1.0)


@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 60), st.integers(0, 60), st.floats(0, 1))
def test_what_holds_for_all(name: str, total: int, warmup: int, final: float) -> None:
    warmup = min(warmup, total)
    factor = lr_factor(
        name, SETTINGS.get(name, {}), warmup_steps=warmup, total_steps=total, final_ratio=final
    )
    got = [factor(step) for step in range(total + 1)]
    assert all(0 < value <= 1 + 1e-12 for value in got[:-1]), "no step trains with rate zero"
    assert all(a < b for a, b in pairwise(got[: warmup + 1])) or name == "step"
    assert all(a >= b for a, b in pairwise(got[warmup:]))
    assert name not in TO_FINAL or warmup == total or got[-1] == pytest.approx(final)


def test_decay_in_steps() -> None:
    by_steps = lr_factor("wsd", {"decay_steps": 5}, warmup_steps=4, total_steps=20)
    by_part = lr_factor("wsd", {"decay_fraction": 0.25}, warmup_steps=4, total_steps=20)
    assert [by_steps(step) for step in range(21)] == [by_part(step) for step in range(21)]
