"""Give a fresh optimizer and a fresh schedule the state that a checkpoint holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..errors import CheckpointError
from ..optim.groups import settings
from ..private.torch import mark_stepped
from ..strategies import Strategy
from .optimizer_state import PREFIX, OptimizerForm
from .ranges import Ranges

_NUMBER = re.compile(r"-?([0-9][0-9.e+-]*|Infinity)")  # of JSON


def restore_settings(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Set the numbers that a parameter group and the settings of a checkpoint share."""
    for key in settings(group).keys() & saved.keys():
        new = saved[key]
        before, after = (_NUMBER.sub("0", json.dumps(value)) for value in (group[key], new))
        if before not in ("null", after):
            raise CheckpointError(
                f"group_settings: {key}: {new!r:.60}: only numbers may change during a run"
            )
        group[key] = tuple(new) if isinstance(group[key], tuple) else new


def begin_state(strategy: Strategy, form: OptimizerForm, ranges: Ranges) -> list[str]:
    """Give a fresh optimizer zeros for the ranges that a checkpoint holds, and the values.

    Return notices. A parameter without state (a parameter that never had a gradient) gets none, or
    zeros if the engine keeps the parameter in a flat group with others.
    """
    group_of = {name: group["names"] for group in form.groups for name in group["names"]}
    first = strategy.optimizer.param_groups[0]
    on_device = first.get("fused") or first.get("capturable")
    notices: dict[str, None] = {}
    owners: dict[Any, str] = {shard.state_key: shard.name for shard in strategy.shards()}
    for state_key, owner in owners.items():
        # A flat group keeps one value for all parameters, also for those on other ranks.
        names = [owner] if isinstance(state_key, nn.Parameter) else group_of[owner]
        stored = {key for name in names for key in _stored(form, ranges, name)}
        # In the order of the form: that of a set differs between processes, and so would files.
        state: dict[str, Any] = {
            key: torch.zeros_like(state_key, dtype=dtype, requires_grad=False)
            for key, dtype in form.ranges.items()
            if key in stored
        }
        for key, is_tensor in form.values.items():
            if key not in stored:
                continue
            kind = PREFIX + key
            found = [
                ranges.whole(kind, name).reshape(()) for name in names if ranges.holds(kind, name)
            ]
            value = max(found)
            placed = value.to(state_key.device) if on_device else value
            state[key] = placed if is_tensor else value.item()
            if found != [value] * len(names):
                notices[
                    f"the optimizer keeps one {key} for {len(names)} parameters here: "
                    f"{value:g} counts for all, the largest of theirs"
                ] = None
        if state:
            strategy.optimizer.state[state_key] = state
    return [*notices]


def _stored(form: OptimizerForm, ranges: Ranges, name: str) -> frozenset[str]:
    """Return the keys of a parameter's state that are stored: all of a sort, or none."""
    keys = (*form.ranges, *form.values)
    found = frozenset(key for key in keys if ranges.holds(PREFIX + key, name))
    if found and found not in form.together:
        raise CheckpointError(f"{name}: of the optimizer's state only {sorted(found)} is there")
    return found


def restore_schedule(schedule: LRScheduler, state: Mapping[str, Any]) -> list[str]:
    """Step a fresh schedule as often as a saved schedule was, at 6 us a step. Return notices.

    A schedule that is a function of the step takes rates of this run. Others continue with the
    saved rates.
    """
    groups = schedule.optimizer.param_groups
    is_function = type(schedule) is LambdaLR
    rates = state["lr"]
    if not is_function and (state["kind"], len(rates)) != (type(schedule).__name__, len(groups)):
        return [f"the schedule was {state['kind']} of {len(rates)} groups: it starts fresh"]

    mark_stepped(schedule.optimizer)
    for _ in range(state["steps"]):
        schedule.step()
    for group, rate in zip(groups, () if is_function else rates, strict=False):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # a compiled step refers to this very tensor
        else:
            group["lr"] = rate
    return []
