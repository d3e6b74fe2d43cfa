"""The name of a run and its folder: placeholders, what they take, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from plans import plan

from trainer.config.naming import file_name_part, resolve_names
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError

SETTINGS = {"width": 8, "api_key": "x", "model": "org/a name", "title": "", "sizes": [1, 2]}


def config_of(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"task": "pkg.digits:CNN", "max_steps": 10} | settings)


def names(**settings: Any) -> dict[str, str]:
    """The names of a run on two processes under DDP."""
    return resolve_names(config_of(**settings), plan(**settings))


def test_the_default_is_experiment_strategy_processes_in_the_folder_that_is_named() -> None:
    assert names() == {"run_name": "CNN-ddp-2", "output_dir": "runs/default"}
    assert names(experiment="five")["run_name"] == "five-ddp-2"


@pytest.mark.parametrize(
    ("template", "name", "folder"),
    [
        ("lr{lr}-s{seed:03}", "lr1e-05-s003", "lr1e-05-s003"),
        ("{lr:.1e}", "1.0e-05", "1.0e-05"),
        ("{compile}-{max_time}-{betas}", "false-none-0.9,0.999", "false-none-0.9,0.999"),
        ("{task} {task_settings.model}", "pkg.digits:CNN org/a name", "pkg.digits-CNN org-a-name"),
        ("{{{task_settings.width}}}", "{8}", "{8}"),
        ("{task_settings.api_key}", "(hidden)", "-hidden-"),
        ("x{task_settings.title}/{task_settings.sizes}", "x_/1,2", "x_/1,2"),
        ("{strategy}x{world_size}-{optimizer}-{device}", "ddpx2-adamw-cpu", "ddpx2-adamw-cpu"),
    ],
)
def test_values_are_spelled_as_in_yaml_and_are_one_part_of_a_path(
    template: str, name: str, folder: str
) -> None:
    found = names(lr=1e-5, seed=3, task_settings=SETTINGS, run_name=template, output_dir=template)
    assert found == {"run_name": name, "output_dir": folder}
    assert names(output_dir="runs/{run_name}", run_name="a/b")["output_dir"] == "runs/a-b"


@pytest.mark.parametrize("value", ["..", "../..", "/etc", ".hidden", "a\nb", "~", "a:b\\c", "ü/é"])
def test_no_value_leaves_its_folder(value: str) -> None:
    part = file_name_part(value)
    assert not {"/", "\\", ":", " ", "\n", "~"} & set(part) and not part.startswith(".")


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{sede}", "{sede}: no such placeholder (double a literal brace); did you mean 'seed'?"),
        ("{task_settings.widht}", "did you mean 'task_settings.width'?"),
        ("{task_settings}", "no such placeholder"),
        ("{lr:d}", "Unknown format code 'd' for object of type 'float'"),
        ("{}", "{0}: no such placeholder"),
        ("x{lr", "expected '}' before end of string"),
        ("x}", "Single '}' encountered in format string"),
        ("{betas[0]}", "{betas[0]}: no such placeholder"),
        ("{seed.__class__}", "{seed.__class__}: no such placeholder"),
        ("{resume}", "{resume}: no such placeholder"),
        ("{output_dir}", "{output_dir}: no such placeholder"),
    ],
)
def test_what_cannot_be_filled_in_names_its_line(template: str, rule: str) -> None:
    config = config_of(output_dir=template, task_settings=SETTINGS)
    with pytest.raises(ConfigError) as caught:
        resolve_names(config, plan(output_dir=template))
    assert str(caught.value).startswith(f"train.yaml:7: output_dir: '{template}': ")
    assert rule in str(caught.value)


def test_the_rate_is_the_configured_one_and_not_the_scaled() -> None:
    found = names(run_name="{lr}", lr=0.5, lr_scaling="linear", reference_batch_size=4)
    assert found["run_name"] == "0.5"
