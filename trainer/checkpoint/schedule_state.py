"""The learning-rate schedule: how far it is, and how it gets there again in O(1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def schedule_state(schedule: LRScheduler) -> dict[str, Any]:
    """Return its class, its steps, the rates of the groups, and what JSON can hold of its own
    state.
    """
    return {
        "kind": type(schedule).__name__,
        "steps": schedule.last_epoch,
        "lr": [float(group["lr"]) for group in schedule.optimizer.param_groups],
        "own": _plain(schedule.state_dict()),
    }


def restore_schedule(schedule: LRScheduler, state: Mapping[str, Any]) -> list[str]:
    """Set a fresh schedule to where another one was; returns notices.

    A schedule that is a function of the step takes its rates from the settings that run now. Others
    build each rate on the one before: they go on from the rates that were saved.
    """
    steps, groups = state["steps"], schedule.optimizer.param_groups
    if isinstance(schedule, LambdaLR):
        rates: list[Any] = [
            base * f(steps) for base, f in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
        schedule.last_epoch, schedule._step_count, schedule._last_lr = steps, steps + 1, rates
    elif type(schedule).__name__ != state["kind"]:
        return [
            f"the schedule was {state['kind']} and is {type(schedule).__name__} now: it starts anew"
        ]
    elif len(state["lr"]) != len(groups):
        return [
            f"the optimizer had {len(state['lr'])} groups and has {len(groups)} now: the schedule starts anew"
        ]
    else:
        rates = state["lr"]
        schedule.load_state_dict(_merged(schedule.state_dict(), state["own"]))
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):  # others (a compiled step) hold on to this very tensor
            group["lr"].fill_(float(rate))
        else:
            group["lr"] = float(rate)
    return []


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Keep numbers and texts, also of the schedules inside a schedule; functions and such are the
    settings' own.
    """
    kept: dict[str, Any] = {}
    for key, value in state.items():
        if _is_nested(value):
            kept[key] = [_plain(item) for item in value]
        elif not isinstance(value, dict):
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                kept[key] = json.loads(
                    json.dumps(value, default=Tensor.item)
                )  # rates may be tensors
    return kept


def _merged(fresh: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fresh)
    for key, value in kept.items():
        nested = _is_nested(value)
        merged[key] = (
            [_merged(f, k) for f, k in zip(fresh[key], value, strict=True)] if nested else value
        )
    return merged


def _is_nested(value: Any) -> bool:
    """Tell whether a value holds the states of inner schedules."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
