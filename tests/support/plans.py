"""Requests, launchers and machines to be held against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from origins import origin, sourced

from trainer import ConfigError, LaunchError, Plan, TrainConfig
from trainer.config.documents import Document
from trainer.config.train_config import DEFAULTS
from trainer.distributed.started_by import Launcher
from trainer.errors import Origin, Sourced
from trainer.launching.files.sections import read_sections
from trainer.launching.request import Request
from trainer.launching.resolve import resolve

CPU, FOUR_GPUS = 0, 4
SAID = "train.yaml:7"
HOME = "ds.json:3"


def asked(value: Any, key: str = "") -> Sourced[Any]:
    return sourced(value, f"{HOME} ({key})" if key else HOME)


def request(strategy: Any = "zero2", **values: Any) -> Request:
    zero = (
        {"zero_optimization": {"stage": int(strategy[-1])}} if strategy.startswith("zero") else {}
    )
    settings = {key: values.pop(key) for key in DEFAULTS.keys() & values}
    return Request(
        **{
            "strategy": strategy,
            "strategy_origin": origin("a.yaml:2 (distributed_type)"),
            "deepspeed": zero,
            "settings": settings,
        }
        | values
    )


def launched(world: int = 2, name: Any = "torchrun", **values: Any) -> Launcher:
    return Launcher(**{"name": name, "world_size": world, "local_world_size": world} | values)


def plan(
    asks: Request | None = None,
    *,
    world: int = 2,
    launcher: Launcher | None = None,
    machine: int = CPU,
    built_by: str | None = None,
    **settings: Any,
) -> Plan:
    """The plan for a config with these settings, each of them written at train.yaml:7."""
    config = TrainConfig(**{"task": "m:T", "max_steps": 10} | settings)
    origins = {key: origin(f"{SAID} ({key})") for key in settings}
    return resolve(
        config, asks, launcher or launched(world), machine, origins, optimizer_built_by=built_by
    )


def refusal(make: Callable[[], Plan]) -> str:
    with pytest.raises((ConfigError, LaunchError)) as caught:
        make()
    return str(caught.value)


PLACES = {
    ".".join((name, *rest)): Origin("ds.json", line, ".".join((name, *rest)))
    for name, first in (("optimizer", 11), ("scheduler", 21))
    for line, rest in enumerate(((), ("type",), ("params",)), first)
}
OPTIMIZER, SCHEDULER = "ds.json:13: optimizer.params", "ds.json:23: scheduler.params"


def section(name: str, kind: str, params: dict[str, Any]) -> dict[str, Sourced[Any]]:
    """As it is read from lines 11 to 13 (optimizer) or 21 to 23 (scheduler) of ds.json."""
    doc = Document(path="ds.json", data={name: {"type": kind, "params": params}}, origins=PLACES)
    return read_sections(doc)


def with_optimizer(kind: str = "AdamW", **params: Any) -> Request:
    return request(settings=section("optimizer", kind, params))


def with_scheduler(kind: str, **params: Any) -> Request:
    return request(settings=section("scheduler", kind, params))


AUTO = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
