"""Rules between the keys of a training config."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub.utils import validate_repo_id

from trainer.config.load import load_config
from trainer.config.rules import profiled_steps
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"overwrite": True, "resume": "auto"},
            "overwrite: true: would delete the run that resume: auto continues",
        ),
        (
            {"optimizer_settings": {"amsgrad": True}},
            "not for optimizer adamw, whose settings are keys; or name",
        ),
        ({"output_dir": "a\0b"}, "output_dir: 'a\\x00b': no path can hold a character of code 0"),
        ({"weights": "a\0b"}, "weights: 'a\\x00b': no path can hold"),
        ({"timeout_minutes": 1e300}, "timeout_minutes: 1e+300: must be at most 1000000"),
        (
            {"epochs": 1, "max_steps": 2**63},
            "max_steps: 9223372036854775808: must be at most 1000000000000000",
        ),
        ({"resume": ""}, "resume: '': must be 'none', 'auto' or the path of a checkpoint"),
        ({"stop_at": "2 epoch s"}, "stop_at: '2 epoch s': must be steps such as 100, or epochs"),
        ({"stop_at": 0}, "stop_at: 0: must be at least 1"),
    ],
)
def test_settings_that_do_not_go_together(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{"task": "a:B", "max_steps": 1, **wrong})
    assert told in str(caught.value)


def test_a_rule_about_a_wrong_key_is_not_reported_as_well() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(task="a:B", max_steps=0, profile_steps="5-6", global_batch_size=12)
    assert str(caught.value).splitlines() == [
        "TrainConfig: max_steps: 0: must be at least 1",
        "TrainConfig: global_batch_size: 12: must be a multiple of micro_batch_size 8",
    ]


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ("1-3", "must be steps such as 10-12, from 2 on"),
        ("6-4", "must be steps such as 10-12, from 2 on"),
        ("all", "must be steps such as 10-12, from 2 on"),
        ("11", "begins behind the last step, max_steps 10"),
    ],
)
def test_profiled_steps_that_cannot_be(steps: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        TrainConfig(task="a:B", max_steps=10, profile_steps=steps)


def test_first_and_last_profiled_step() -> None:
    assert profiled_steps("10-12") == (10, 12)
    assert profiled_steps("7") == (7, 7)


def test_a_tracker_is_named_once() -> None:
    with pytest.raises(ConfigError, match="has a name twice"):
        TrainConfig(task="a:B", epochs=1, trackers=["wandb", "wandb"])


@pytest.mark.parametrize("repository", ["anna/digits", "my-org/a_b.c-1", "a/" + "b" * 96])
def test_a_repository_of_the_hub_is_a_user_and_a_name(repository: str) -> None:
    assert TrainConfig(task="a:B", max_steps=1, push_to_hub=repository).push_to_hub == repository
    validate_repo_id(repository)


@pytest.mark.parametrize(
    "repository",
    ["", "digits", "a/b/c", "a/", "https://huggingface.co/a/b", "a/b.git", "a/-b", "a/b--c", "a/ b"]
    + ["a/b..c", "a/" + "b" * 97, "ä/b"],
)
def test_what_is_no_repository_of_the_hub_is_an_error(repository: str) -> None:
    rule = "must be a repository of the Hub, USER/NAME, such as anna/digits"
    with pytest.raises(ConfigError, match=f"push_to_hub: .*{rule}"):
        TrainConfig(task="a:B", max_steps=1, push_to_hub=repository)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("hub_token", "hub_token: '(hidden)': unknown key; no key, so that it is written nowhere"),
        ("push_to_hub_token", "run hf auth login, or set HF_TOKEN"),
        ("hub_model_id", "did you mean 'push_to_hub'?"),
        ("hub_private_repo", "did you mean 'hub_private'?"),
        ("hub_strategy", "push_to_hub pushes each best model, and the last one at the end"),
    ],
)
def test_other_names_of_the_hubs_keys_are_answered_and_no_token_is_shown(
    key: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["--task", "a:B", "--max_steps", "1", f"--{key}", "hf_abcdefgh"])
    assert said in str(caught.value)
    if key.endswith("token"):
        assert "hf_abcdefgh" not in str(caught.value)
