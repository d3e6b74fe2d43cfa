"""The training config: each mistake is one line, all lines come at once, whatever the config was read from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_loading import problems

from trainer.config.load import load_config
from trainer.config.rules import profiled_steps
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError

INTERVAL = "must be steps such as 100, or epochs such as '2 epochs' or '1/4 epoch'"


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("epohs", 3, "unknown key; did you mean 'epochs'?"),
        ("micro_batch_size", 0, "must be greater than or equal to 1"),
        ("micro_batch_size", 2.5, "must be a valid integer"),
        ("micro_batch_size", True, "must be a valid integer"),
        ("seed", 2**32, "must be less than or equal to 4294967295"),
        ("max_steps", 2**63, "must be less than or equal to 1000000000000000"),
        ("lr", 0.0, "must be greater than 0"),
        ("lr", "fast", "must be a valid number"),
        ("timeout_minutes", 1e300, "must be less than or equal to 1000000"),
        ("betas", [0.9, 0.9, 0.9], "Tuple should have at most 2 items"),
        ("betas", 0.9, "must be a valid array"),
        ("trackers", "wandb", "must be a valid array"),
        ("drop_last", 1, "must be a valid boolean"),
        ("optimizer", "adamW", "must have the form of the key: adamw, adam, sgd, muon, or a"),
        ("optimizer_settings", {"amsgrad": True}, "not for optimizer adamw, whose settings are keys"),
        ("lr_scaling", "linear", "needs reference_batch_size, the global batch that lr belongs to"),
        ("best_mode", "lower", "must be 'min' or 'max'"),
        ("best_metric", "loss", "the form of the key: keep the best model by this, such as eval/loss"),
        ("eval_every", "weekly", INTERVAL),
        ("save_every", "0 epochs", INTERVAL),
        ("stop_at", 0, INTERVAL),
        ("max_time", "2x", "must be a time such as 90s, 45m, 1h30m or 2d"),
        ("task_settings", 3, "must be an object"),
        ("output_dir", "", "must have at least 1 character"),
        ("run_name", " ", "must have the form of the key: "),
        ("profile_steps", "all", "must have the form of the key: "),
        ("profile_steps", "1-3", "must be steps such as 10-12, from 2 (the first warms up) to max_steps"),
        ("profile_steps", "6-4", "must be steps such as 10-12"),
        ("profile_steps", "11", "must be steps such as 10-12"),
        ("push_to_hub", "digits", "must have the form of the key: "),
        ("schedule", "cosin", "unknown schedule; did you mean 'cosine'?"),
        ("schedule", "torch:", "unknown schedule; known: constant, cosine, inverse_sqrt, linear, "),
        ("schedule_settings", {"gamma": 1}, "needs schedule, whose settings these are"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_alike_from_yaml_json_and_the_command_line(
    here: Path, key: str, value: Any, rule: str
) -> None:
    config = {"task": "a:B", "max_steps": 10, key: value}
    lines = [f"{name}: {json.dumps(given)}" for name, given in config.items()]
    number = len(lines) if key != "max_steps" else 2
    Path("train.yaml").write_text("\n".join(lines))
    Path("train.json").write_text(json.dumps(config, indent=1))
    [line] = problems("--config", "train.yaml")
    assert line.startswith(f"train.yaml:{number}: {key}: ") and rule in line
    [line] = problems("--config", "train.json")
    assert line.startswith(f"train.json:{number + 1}: {key}: ") and rule in line

    typed = [
        f"--{name}={given if isinstance(given, str) else json.dumps(given)}"
        for name, given in config.items()
    ]
    if value not in ("", " ", "a\0b"):
        [line] = problems(*typed)
        assert line.startswith(f"command line: {key}: ") and rule in line
    told = f"^TrainConfig: {key}: |unexpected keyword argument '{key}'"
    with pytest.raises((ConfigError, TypeError), match=told):
        TrainConfig(**config)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"overwrite": True, "resume": "auto"}, "overwrite: true: would delete the run that resume: auto continues"),
        ({"warmup_steps": 3, "warmup_samples": 9}, "warmup_samples: 9: sets the same length as warmup_steps in"),
        ({"schedule": "step"}, "schedule_settings.milestones: is required"),
        ({"schedule": "step", "schedule_settings": {"milestones": [3], "gama": 0.5}}, "did you mean 'gamma'?"),
        ({"schedule": "step", "schedule_settings": {"milestones": [0]}}, "milestones.0: 0: must be greater"),
        ({"schedule": "cosine", "schedule_settings": {"gamma": 1}}, "schedule_settings.gamma: 1: unknown key"),
        ({"schedule": "wsd"}, "schedule_settings: needs one of decay_steps and decay_fraction, such as"),
        ({"schedule": "wsd", "schedule_settings": {"decay_steps": 3, "decay_fraction": 0.1}}, "needs one of decay"),
        ({"schedule": "inverse_sqrt"}, "schedule: 'inverse_sqrt': needs warm-up, after which it falls: one of"),
        ({"max_steps": None}, "epochs: epochs or max_steps is required"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{"task": "a:B", "max_steps": 9, **settings})
    [line] = str(caught.value).splitlines()
    assert line.startswith("TrainConfig: ") and rule in line


def test_all_problems_are_told_at_once(here: Path) -> None:
    Path("train.yaml").write_text(
        "tsk: a:B\nepohs: 3\nlr: -1\nwarmup_steps: 5\nmax_steps: 2\nbetas: [0.9, 2]\n"
    )
    assert problems("--config=train.yaml", "--sead", "3") == [
        "train.yaml: task: is required",
        "train.yaml:3: lr: -1: must be greater than 0",
        "train.yaml:6: betas.1: 2: must be less than 1",
        "train.yaml:1: tsk: 'a:B': unknown key; did you mean 'task'?",
        "train.yaml:2: epohs: 3: unknown key; did you mean 'epochs'?",
        "command line: sead: 3: unknown key; did you mean 'seed'?",
    ]


def test_a_config_is_frozen_and_replaced_with_the_same_checks() -> None:
    config = TrainConfig(task="a:B", epochs=1, betas=[0.9, 0.95])  # type: ignore[arg-type]
    assert config.betas == (0.9, 0.95)
    assert replace(config, accumulation_steps=4).accumulation_steps == 4
    with pytest.raises(ConfigError, match="accumulation_steps: 0: must be greater"):
        replace(config, accumulation_steps=0)


def test_a_missing_key_of_a_schedule_in_a_file_has_its_line(here: Path) -> None:
    text = "task: a:B\nmax_steps: 9\nschedule: step\nschedule_settings:\n  milestones: [3]\n  gama: 0.5\n"
    Path("train.yaml").write_text(text)
    [line] = problems("--config=train.yaml")
    assert line == "train.yaml:6: schedule_settings.gama: 0.5: unknown key; did you mean 'gamma'?"
    loaded = load_config(["--config=train.yaml", "--schedule_settings", "{milestones: [3]}"])
    assert loaded.config.schedule_settings == {"milestones": [3]}


def test_first_and_last_profiled_step() -> None:
    assert profiled_steps("10-12") == (10, 12)
    assert profiled_steps("7") == (7, 7)


@pytest.mark.parametrize("key", ["hf_token", "task_settings.api_key"])
def test_no_secret_is_shown(here: Path, key: str) -> None:
    Path("train.yaml").write_text("task: a:B\nmax_steps: 1\n")
    assert "hf_abcdefgh" not in "".join(
        problems("--config=train.yaml", f"--{key}=hf_abcdefgh", "--lr=0")
    )
