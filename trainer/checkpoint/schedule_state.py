"""The state of the learning-rate schedule, and how a fresh schedule is set to a step in O(1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..private.torch import set_schedule


def schedule_state(schedule: LRScheduler) -> dict[str, Any]:
    """Return its class, its steps, the groups' rates, and what JSON can hold of its own state."""
    return {
        "kind": type(schedule).__name__,
        "steps": schedule.last_epoch,
        "lr": [float(group["lr"]) for group in schedule.optimizer.param_groups],
        "own": _plain(schedule.state_dict()),
    }


def restore_schedule(schedule: LRScheduler, state: Mapping[str, Any]) -> list[str]:
    """Set a fresh schedule to where a saved one was. Return notices.

    A schedule that is a function of the step takes its rates from the settings of this run. Others
    compute each rate from the one before: they continue with the rates that were saved.
    """
    steps = state["steps"]
    kind = type(schedule).__name__
    groups = schedule.optimizer.param_groups

    if isinstance(schedule, LambdaLR):
        rates = []
        for base_rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True):
            rates.append(base_rate * factor(steps))
        set_schedule(schedule, steps, rates)
        _set_rates(groups, rates)
        return []

    before, now = (state["kind"], len(state["lr"])), (kind, len(groups))
    if before != now:
        return [f"the schedule was {before[0]} of {before[1]} groups: it starts fresh"]
    schedule.load_state_dict(_merged(schedule.state_dict(), state["own"]))
    _set_rates(groups, state["lr"])
    return []


def _set_rates(groups: Sequence[dict[str, Any]], rates: Sequence[Any]) -> None:
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(float(rate))  # others (a compiled step) refer to this very tensor
        else:
            group["lr"] = float(rate)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts of a schedule's state, also those of schedules inside it.

    Functions and the like are not state: the settings make them again.
    """
    plain: dict[str, Any] = {}
    for key, value in state.items():
        if _is_nested(value):
            plain[key] = [_plain(item) for item in value]
        elif not isinstance(value, dict):
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                text = json.dumps(value, default=Tensor.item)  # rates may be tensors
                plain[key] = json.loads(text)
    return plain


def _merged(fresh: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fresh schedule's state with the saved values in it."""
    merged = dict(fresh)
    for key, value in saved.items():
        if _is_nested(value):
            pairs = zip(fresh[key], value, strict=True)
            merged[key] = [_merged(fresh_inner, inner) for fresh_inner, inner in pairs]
        else:
            merged[key] = value
    return merged


def _is_nested(value: Any) -> bool:
    """Return whether a value is a list of the states of inner schedules."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
