"""What only DeepSpeed itself refuses is one line at the launch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer.distributed.launcher import Launcher
from trainer.errors import ConfigError, LaunchError
from trainer.launching.files.deepspeed_file import read_deepspeed_file
from trainer.launching.resolve import resolve
from trainer.plan import Plan
from trainer.strategies.deepspeed_start import check_engine_config

ZERO = '{"zero_optimization": {"stage": 2}'


def plan_of(tmp_path: Path, text: str) -> Plan:
    from trainer import TrainConfig

    (tmp_path / "ds.json").write_text(text)
    request = read_deepspeed_file(tmp_path / "ds.json")
    config = TrainConfig(task="m:T", max_steps=1)
    return resolve(
        config, request, Launcher(name="torchrun", world_size=2, local_world_size=2), 0, {}
    )


def test_value_that_deepspeed_refuses_is_one_line(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ZERO + ', "checkpoint": {"tag_validation": "maybe"}}')
    with pytest.raises(ConfigError, match=r"ds\.json: DeepSpeed: .*tag_validation") as caught:
        check_engine_config(plan)
    assert len(str(caught.value).splitlines()) == 1
    check_engine_config(plan_of(tmp_path, ZERO + "}"))


def test_deepspeed_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.config", None)
    with pytest.raises(
        LaunchError, match=r"^DeepSpeed is not installed: pip install 'samecurve\[deepspeed\]'$"
    ):
        check_engine_config(plan_of(tmp_path, ZERO + "}"))


def test_transformers_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra brings it; who installs DeepSpeed alone reads what is missing."""
    monkeypatch.setattr("trainer.strategies.deepspeed_start.find_spec", lambda name: None)
    with pytest.raises(
        LaunchError, match=r"with transformers only: pip install 'samecurve\[deepspeed\]'$"
    ):
        check_engine_config(plan_of(tmp_path, ZERO + "}"))
