"""Learning-rate schedules: what a config may say about them, and the banner shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import plan

from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError
from trainer.reporting.banner import plan_rows


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"schedule": "cosin"}, "schedule: 'cosin': unknown schedule; did you mean 'cosine'?"),
        (
            {"schedule": "poly"},
            "schedule: 'poly': unknown schedule; known: constant, cosine, inverse_sqrt, linear, ",
        ),
        (
            {"schedule": "torch:ReduceLROnPlateau"},
            "follows a metric and not the optimizer steps; not offered",
        ),
        (
            {"schedule": "torch:"},
            "schedule: 'torch:': unknown schedule; known: constant, cosine, inverse_sqrt, linear, ",
        ),
        (
            {"schedule": "step"},
            "schedule_settings.milestones: is required: optimizer steps after which lr is",
        ),
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
        (
            {"schedule_settings": {"gamma": 1}},
            "schedule_settings: {'gamma': 1}: needs schedule, whose settings these",
        ),
        (
            {"schedule": "wsd"},
            "schedule_settings: needs one of decay_steps and decay_fraction, such as",
        ),
        (
            {"schedule": "wsd", "schedule_settings": {"decay_steps": 3, "decay_fraction": 0.1}},
            "schedule_settings: needs one of decay_steps and decay_fraction, such as",
        ),
        (
            {"schedule": "inverse_sqrt"},
            "schedule: 'inverse_sqrt': needs warm-up, after which it falls: set one of",
        ),
        (
            {"warmup_steps": 2, "warmup_samples": 9},
            "warmup_samples: 9: says in another unit what warmup_steps says; keep one of them",
        ),
        (
            {"warmup_samples": 9, "warmup_fraction": 0.5},
            "warmup_fraction: 0.5: says in another unit what warmup_samples says; keep one of them",
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
    path.write_text(
        "task: a:B\nmax_steps: 9\nschedule: step\nschedule_settings:\n  milestones: [3]\n  gama: 0.5\n"
    )
    with pytest.raises(
        ConfigError,
        match=rf"^{path}:6: schedule_settings.gama: 0.5: unknown key; did you mean 'gamma'",
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
    assert (
        made.with_length(20).warmup_steps,
        plan(warmup_steps=7).with_length(20).warmup_steps,
    ) == (5, 7)
    assert plan(warmup_samples=9 * batch).with_length(8).warmup_steps == 9, (
        "a run may end within it"
    )


def test_the_banner_shows_how_the_rate_came_about() -> None:
    made = plan(
        lr=0.1, lr_scaling="linear", reference_batch_size=4, warmup_samples=100, schedule="cosine"
    )
    row = dict(plan_rows(made.as_dict()))["optimizer"]
    batch = made.global_batch_size
    assert row == (
        f"adamw, lr 0.1 at batch 4 -> {0.1 * batch / 4:g} at batch {batch} (linear), cosine, "
        f"{-(-100 // batch)} warm-up steps (100 samples)"
    )
    before = dict(plan_rows(plan(warmup_fraction=0.1, epochs=3).as_dict()))["optimizer"]
    assert before.endswith("constant, warm-up (0.1 of the run)")
