"""Learning-rate schedules: their shape over optimizer steps, and what a config may say about them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_plan import plan

from trainer.config.schedules import SCHEDULES, TO_FINAL
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError
from trainer.optim.schedule import build_schedule, check_schedule, lr_factor, refuse_plateau
from trainer.plan import Plan
from trainer.reporting.banner import plan_rows

SETTINGS: dict[str, dict[str, Any]] = {"step": {"milestones": [12, 6], "gamma": 0.5}, "wsd": {"decay_fraction": 0.25}}


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
    factor = lr_factor(name, SETTINGS.get(name), warmup_steps=4, total_steps=20, final_ratio=0.1)
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


@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 60), st.integers(0, 60), st.floats(0, 1))
def test_what_holds_for_all(name: str, total: int, warmup: int, final: float) -> None:
    warmup = min(warmup, total)
    factor = lr_factor(name, SETTINGS.get(name), warmup_steps=warmup, total_steps=total, final_ratio=final)
    got = [factor(step) for step in range(total + 1)]
    assert all(0 < value <= 1 + 1e-12 for value in got[:-1]), "no step trains with rate zero"
    assert all(a < b for a, b in pairwise(got[: warmup + 1])) or name == "step"
    assert all(a >= b for a, b in pairwise(got[warmup:]))
    assert name not in TO_FINAL or warmup == total or got[-1] == pytest.approx(final)


def test_decay_in_steps() -> None:
    by_steps = lr_factor("wsd", {"decay_steps": 5}, warmup_steps=4, total_steps=20)
    by_part = lr_factor("wsd", {"decay_fraction": 0.25}, warmup_steps=4, total_steps=20)
    assert [by_steps(step) for step in range(21)] == [by_part(step) for step in range(21)]


def test_a_schedule_of_torch_with_and_without_warm_up() -> None:
    settings = {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.5}}
    assert rates(plan(**settings), 4, lr=8.0) == [8.0, 4.0, 2.0, 1.0]
    assert rates(plan(**settings, warmup_steps=3), 6, lr=8.0) == [2.0, 4.0, 6.0, 8.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("schedule", "settings", "message"),
    [
        (
            "torch:ExponentailLR",
            {},
            "schedule: 'torch:ExponentailLR': torch.optim.lr_scheduler has no such schedule; "
            "did you mean 'ExponentialLR'?",
        ),
        ("torch:LRScheduler", {}, "schedule: 'torch:LRScheduler': torch.optim.lr_scheduler has no such schedule; "),
        ("torch:ExponentialLR", {}, "schedule_settings: {}: torch's ExponentialLR does not take these: "),
        (
            "torch:ExponentialLR",
            {"gama": 1},
            "schedule_settings: {'gama': 1}: torch's ExponentialLR does not take these: ",
        ),
        (
            "torch:OneCycleLR",
            {"max_lr": 1.0, "total_steps": -1},
            "schedule_settings: {'max_lr': 1.0, 'total_steps': -1}: torch's OneCycleLR does not take these: ",
        ),
    ],
)
def test_what_torch_does_not_have(schedule: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schedule(plan(schedule=schedule, schedule_settings=settings))
    assert message in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_plateau_is_refused_in_code_too() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    with pytest.raises(ConfigError, match=r"^Mine.build_schedule: 'ReduceLROnPlateau': follows a metric and not the"):
        refuse_plateau(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "Mine.build_schedule")


# What a config may say


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"schedule": "cosin"}, "schedule: 'cosin': unknown schedule; did you mean 'cosine'?"),
        ({"schedule": "poly"}, "schedule: 'poly': unknown schedule; known: constant, cosine, inverse_sqrt, linear, "),
        ({"schedule": "torch:ReduceLROnPlateau"}, "follows a metric and not the optimizer steps; not offered"),
        ({"schedule": "torch:"}, "schedule: 'torch:': must be torch:Class, a class of torch.optim.lr_scheduler"),
        ({"schedule": "step"}, "schedule_settings.milestones: is required: optimizer steps after which lr is"),
        (
            {"schedule": "step", "schedule_settings": {"milestones": [3], "gama": 0.5}},
            "schedule_settings.gama: 0.5: unknown key; did you mean 'gamma'?",
        ),
        (
            {"schedule": "step", "schedule_settings": {"milestones": [0]}},
            "schedule_settings.milestones.0: 0: must be at least 1",
        ),
        (
            {"schedule": "cosine", "schedule_settings": {"gamma": 1}},
            "schedule_settings.gamma: 1: unknown key; there are no settings here",
        ),
        ({"schedule_settings": {"gamma": 1}}, "schedule_settings: {'gamma': 1}: needs schedule, whose settings these"),
        ({"schedule": "wsd"}, "schedule_settings: needs one of decay_steps and decay_fraction, such as"),
        (
            {"schedule": "wsd", "schedule_settings": {"decay_steps": 3, "decay_fraction": 0.1}},
            "schedule_settings: needs one of decay_steps and decay_fraction, such as",
        ),
        ({"schedule": "inverse_sqrt"}, "schedule: 'inverse_sqrt': needs warm-up, after which it falls: set warmup_"),
        (
            {"warmup_steps": 2, "warmup_samples": 9},
            "warmup_samples: 9: says in another unit what warmup_steps says; keep one of them",
        ),
        (
            {"warmup_samples": 9, "warmup_fraction": 0.5},
            "warmup_fraction: 0.5: says in another unit what warmup_samples says; keep one of them",
        ),
        (
            {"schedule": "step", "schedule_settings": {"milestones": [3]}, "final_lr_ratio": 0.1},
            "final_lr_ratio: 0.1: has no effect on schedule step; remove it",
        ),
    ],
)
def test_mistakes(said: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(task="a:B", max_steps=10, **said)
    [told] = str(caught.value).splitlines()
    assert line in told


def test_mistakes_in_a_file_have_their_line(tmp_path: Path) -> None:
    from trainer.config.load import load_config

    path = tmp_path / "train.yaml"
    path.write_text("task: a:B\nmax_steps: 9\nschedule: step\nschedule_settings:\n  milestones: [3]\n  gama: 0.5\n")
    with pytest.raises(
        ConfigError, match=rf"^{path}:6: schedule_settings.gama: 0.5: unknown key; did you mean 'gamma'"
    ):
        load_config(["--config", str(path)])
    loaded = load_config(["--config", str(path), "--schedule_settings", "{milestones: [3]}"])
    assert loaded.config.schedule_settings == {"milestones": [3]}


# Warm-up


def test_warm_up_in_steps_samples_or_a_fraction() -> None:
    batch = plan().global_batch_size
    assert plan(warmup_samples=5 * batch).warmup_steps == 5
    assert plan(warmup_samples=5 * batch + 1).warmup_steps == 6
    made = plan(warmup_fraction=0.25)
    assert (made.with_length(20).warmup_steps, plan(warmup_steps=7).with_length(20).warmup_steps) == (5, 7)
    assert plan(warmup_samples=9 * batch).with_length(8).warmup_steps == 9, "a run may end within it"


def test_the_banner_shows_how_the_rate_came_about() -> None:
    made = plan(lr=0.1, lr_scaling="linear", reference_batch_size=4, warmup_samples=100, schedule="cosine")
    row = dict(plan_rows(made.as_dict()))["optimizer"]
    batch = made.global_batch_size
    assert row == (
        f"adamw, lr 0.1 at batch 4 -> {0.1 * batch / 4:g} at batch {batch} (linear), cosine, "
        f"{-(-100 // batch)} warm-up steps (100 samples)"
    )
    before = dict(plan_rows(plan(warmup_fraction=0.1, epochs=3).as_dict()))["optimizer"]
    assert before.endswith("constant, warm-up (0.1 of the run)")
