"""The name of a run and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from origins import origin
from plans import plan

from trainer.config.dump import to_yaml
from trainer.config.load import load_config
from trainer.config.naming import Names, resolve_names
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError


def config_of(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"task": "m:T", "max_steps": 10} | settings)


def names(environment: Mapping[str, str] | None = None, **settings: Any) -> Names:
    """The names of a run on two processes under DDP."""
    return resolve_names(config_of(**settings), plan(**settings), {}, environment or {})


def test_the_default_is_experiment_strategy_processes_in_the_folder_that_is_named() -> None:
    assert names() == Names(run_name="T-ddp-2", output_dir="runs/default")
    assert names(experiment="five").run_name == "five-ddp-2"


def test_keys_and_facts_of_the_plan_are_placeholders() -> None:
    found = names(
        run_name="{task}-lr{lr}-{strategy}x{world_size}-b{global_batch_size}-{optimizer}-{device}",
        output_dir="runs/{run_name}/{experiment}",
        lr=3e-4,
        micro_batch_size=4,
    )
    assert found.run_name == "m:T-lr0.0003-ddpx2-b8-adamw-cpu"
    assert found.output_dir == "runs/m-T-lr0.0003-ddpx2-b8-adamw-cpu/T"


def test_the_rate_is_the_configured_one_and_not_the_scaled() -> None:
    found = names(run_name="{lr}", lr=0.5, lr_scaling="linear", reference_batch_size=4)
    assert found.run_name == "0.5"


def test_before_the_launch_what_the_plan_decides_stays() -> None:
    config = config_of(run_name="{lr}-{strategy}", output_dir="runs/{run_name}-{optimizer}/{seed}")
    found = resolve_names(config, None, {}, {})
    assert found == Names(run_name="0.001-{strategy}", output_dir="runs/{run_name}-{optimizer}/0")
    config = config_of(run_name="{lr}", output_dir="runs/{run_name}")
    assert resolve_names(config, None, {}, {}).output_dir == "runs/0.001"


@pytest.mark.parametrize("name", ["resume", "overwrite", "output_dir", "run_name"])
def test_what_differs_between_two_starts_of_a_run_or_leads_in_a_circle_is_refused(
    name: str,
) -> None:
    with pytest.raises(ConfigError, match="no such placeholder"):
        names(run_name=f"{{{name}}}")


def test_a_misspelt_placeholder_names_its_line() -> None:
    at = {"output_dir": origin("train.yaml:4 (output_dir)")}
    with pytest.raises(ConfigError) as caught:
        resolve_names(config_of(output_dir="runs/{sede}"), None, at, {})
    assert str(caught.value).startswith(
        "train.yaml:4: output_dir: 'runs/{sede}': {sede}: no such placeholder; did you mean 'seed'?"
    )


def test_the_config_that_is_written_names_the_same_folder_again(here: Path) -> None:
    config = config_of(output_dir="runs/{{x}}-{seed}", run_name="{seed}-{strategy}", seed=7)
    written = resolve_names(config, plan(), {}, {}).written_to(config)
    Path("config.yaml").write_text(to_yaml(written))
    again = load_config(["--config", "config.yaml"]).config
    found = resolve_names(again, plan(), {}, {})
    assert (found.output_dir, found.run_name) == ("runs/{x}-7", "7-ddp")
    assert resolve_names(again, plan(world=1), {}, {}).run_name == "7-single"


def test_wandbs_variable_names_a_run_on_wandb_that_has_no_other_name() -> None:
    variables = {"WANDB_NAME": "by  hand"}
    assert names(variables).run_name == "T-ddp-2"  # nothing of it is on W&B
    found = names(variables, trackers=["wandb"], output_dir="runs/{run_name}")
    assert (found.run_name, found.output_dir, found.notices) == ("by hand", "runs/by-hand", ())
    config = config_of(trackers=["wandb"])
    assert found.written_to(config).run_name == "by hand"  # also of an attempt without it


def test_the_key_goes_before_wandbs_variable_and_one_notice_says_so() -> None:
    variables = {"WANDB_NAME": "other"}
    config = config_of(trackers=["wandb"], run_name="mine")
    at = {"run_name": origin("train.yaml:9 (run_name)")}
    found = resolve_names(config, plan(), at, variables)
    assert found.run_name == "mine"
    assert found.notices == (
        "WANDB_NAME 'other' has no effect: run_name (train.yaml:9) names the run",
    )
    same = replace(config, run_name="other")
    assert resolve_names(same, plan(), at, variables).notices == ()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("run_name: 'x{lr'", "t.yaml:3: run_name: 'x{lr': a brace has no partner"),
        ("output_dir: 'x}'", "t.yaml:3: output_dir: 'x}': a brace has no partner"),
        ("run_name: ' '", "t.yaml:3: run_name: ' ': must not be empty"),
    ],
)
def test_braces_are_checked_as_the_file_is_read(here: Path, line: str, rule: str) -> None:
    Path("t.yaml").write_text(f"task: a:B\nmax_steps: 1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(["--config", "t.yaml"])
    assert rule in str(caught.value)


def test_print_config_shows_what_becomes_of_the_names(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.yaml").write_text("task: a:B\nmax_steps: 1\noutput_dir: 'runs/{lr}'\n")
    with pytest.raises(SystemExit):
        load_config(["--config", "t.yaml", "--run_name={seed}x{world_size}", "--print_config"])
    shown = capsys.readouterr().out
    assert "# t.yaml:3: runs/0.001\n" in shown and "# command line: 0x{world_size}\n" in shown
    Path("again.yaml").write_text(shown)
    assert load_config(["--config", "again.yaml"]).config.output_dir == "runs/{lr}"
