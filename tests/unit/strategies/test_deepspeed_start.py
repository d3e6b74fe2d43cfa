"""What the process gets before DeepSpeed's engine, and what is left out while it is built.

What only DeepSpeed itself refuses is one line at the launch.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plans import plan, request

from trainer.distributed.launcher import Launcher
from trainer.errors import ConfigError, LaunchError
from trainer.launching.files.deepspeed_file import read_deepspeed_file
from trainer.launching.resolve import resolve
from trainer.plan import Plan
from trainer.private.deepspeed import quiet
from trainer.strategies import deepspeed_start
from trainer.strategies.deepspeed_start import check_engine_config, engine_start, prepare_process


def test_the_environment_of_a_cpu_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "check_engine_config", lambda plan: None)
    monkeypatch.setattr(deepspeed_start, "without_compiled_op", lambda: None)
    environment: dict[str, str] = {}
    monkeypatch.setattr(deepspeed_start.os, "environ", environment)
    prepare_process(plan(request("zero2")))
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["DS_ACCELERATOR"] == "cpu"


def test_parameters_are_not_gathered_while_the_engine_is_built() -> None:
    parameter: Any = SimpleNamespace(ds_id=0, all_gather=lambda: "whole", partition=lambda: "cut")
    model: Any = SimpleNamespace(parameters=lambda: [parameter])
    with engine_start(model):
        assert parameter.all_gather() is None
    assert parameter.all_gather() == "whole"


def test_logging_is_quiet_only_meanwhile() -> None:
    log = logging.getLogger("deepspeed_test")
    with quiet():
        assert not log.isEnabledFor(logging.WARNING)
    assert log.isEnabledFor(logging.WARNING)


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
