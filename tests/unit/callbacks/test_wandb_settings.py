"""W&B's variables: each takes effect, or is named."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.callbacks.wandb_settings import WandbSettings
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError


def settings(variables: dict[str, str], **config: Any) -> WandbSettings:
    return WandbSettings.of(TrainConfig(task="a:Task", max_steps=9, **config), variables)


def test_without_variables_all_is_the_configs() -> None:
    assert settings({}, project="p") == WandbSettings(
        project="p", group="Task", job_type="train", tags=(), notices=()
    )


def test_variables_count_where_the_config_says_nothing() -> None:
    found = settings(
        {
            "WANDB_PROJECT": "theirs",
            "WANDB_RUN_GROUP": "group",
            "WANDB_JOB_TYPE": "sweep",
            "WANDB_TAGS": "a, b,",
            "WANDB_ENTITY": "team",
            "WANDB_NOTES": "read by wandb itself",
            "WANDB_RESUME": "allow",
        }
    )
    assert found == WandbSettings(
        project="theirs", group="group", job_type="sweep", tags=("a", "b"), notices=()
    )


def test_keys_of_the_config_go_before_variables_and_say_so() -> None:
    variables = {"WANDB_PROJECT": "theirs", "WANDB_RUN_GROUP": "group"}
    found = settings(variables, project="mine", experiment="five")
    assert (found.project, found.group) == ("mine", "five")
    assert found.notices == (
        "WANDB_PROJECT 'theirs' has no effect: project is 'mine'",
        "WANDB_RUN_GROUP 'group' has no effect: experiment is 'five'",
    )
    assert settings(variables, project="theirs", experiment="group").notices == ()


def test_a_sweep_belongs_to_its_project() -> None:
    """So wandb itself has it, whatever it is given."""
    variables = {"WANDB_SWEEP_ID": "s", "WANDB_PROJECT": "theirs", "WANDB_DIR": "/the/agents"}
    found = settings(variables, project="mine")
    assert found.project == "theirs"
    assert found.notices == ("project 'mine' has no effect: the sweep's is 'theirs'",)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("WANDB_DIR", "/x", "its files are in the run's folder"),
        ("WANDB_RESUME", "must", "resume: auto continues the run"),
        ("WANDB_CONSOLE", "wrap", "are not sent"),
        ("WANDB_SAVE_CODE", "true", "no code is sent"),
        ("WANDB_INIT_TIMEOUT", "300", "after 10 seconds"),
        ("WANDB_LOG_MODEL", "end", "here: track_model: true"),
        ("WANDB_DISABLED", "true", "leave wandb out of trackers"),
    ],
)
def test_a_variable_without_effect_is_named(name: str, value: str, reason: str) -> None:
    [notice] = settings({name: value}).notices
    assert notice.startswith(f"{name} '{value}' has no effect: ") and reason in notice


@pytest.mark.parametrize(("name", "value"), [("WANDB_RUN_ID", "a/b"), ("WANDB_PROJECT", "a/b")])
def test_what_wandb_refuses_is_an_error_before_the_first_step(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"environment: {name}: '{value}': .*cannot contain"):
        settings({name: value})
