"""Give a fresh optimizer and a fresh schedule the state that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..private.torch import set_schedule
from ..strategies import Shard, Strategy
from ..strategies.tensors import local
from .decode import decode
from .optimizer_state import PREFIX, OptimizerForm, settings
from .ranges import Ranges
from .schedule_state import is_nested


def restore_settings(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Set those encoded settings of a checkpoint that a parameter group has as well."""
    for key in settings(group).keys() & saved.keys():
        value = decode(saved[key])
        group[key] = tuple(value) if isinstance(group[key], tuple) else value


class OptimizerStateReader:
    """Gives a fresh optimizer the state that a checkpoint holds: first each shard's, then the rest.

    A parameter that had no state (it never had a gradient) gets none, or zeros where its engine
    keeps it in a flat group with others.

    Args:
        strategy: prepared. Its optimizer has no state yet.
        ranges: the tensors of the checkpoint.
    """

    def __init__(self, strategy: Strategy, form: OptimizerForm, ranges: Ranges) -> None:
        self._optimizer = strategy.optimizer
        self._form = form
        self._ranges = ranges
        self._states: dict[Tensor, dict[str, Any]] = {}
        self._names: dict[Tensor, Sequence[str]] = {}  # of the parameters below one state key
        self._group_of: dict[str, Sequence[str]] = {}
        for group in form.groups:
            for name in group["names"]:
                self._group_of[name] = group["names"]

    def read(self, shard: Shard) -> None:
        """Read the state of one shard that has the parameter's shape (Adam's moments)."""
        state_key = shard.state_key
        assert state_key is not None, f"{shard.name} is not trained"
        # A flat group keeps one value for all its parameters, also for those on other ranks.
        is_alone = isinstance(state_key, nn.Parameter)
        self._names[state_key] = [shard.name] if is_alone else self._group_of[shard.name]
        state = self._states.setdefault(state_key, {})
        numel = shard.tensor.numel()

        for key, dtype in self._form.ranges.items():
            if not self._ranges.holds(PREFIX + key, shard.name):
                continue
            if key not in state:
                # Zeros cost a third of the time: only if some of them may stay.
                fills_all = numel == local(state_key).numel()
                make = torch.empty_like if fills_all else torch.zeros_like
                state[key] = make(state_key, dtype=dtype, requires_grad=False)
            flat = local(state[key]).view(-1)
            out = flat[shard.state_offset : shard.state_offset + numel]
            self._ranges.read(PREFIX + key, shard.name, shard.start, out)

    def finish(self) -> list[str]:
        """Read the values (Adam's step), and give everything to the optimizer. Return notices."""
        notices: list[str] = []
        for state_key, names in self._names.items():
            for key in self._form.values:
                notice = self._read_value(key, state_key, names)
                if notice and notice not in notices:
                    notices.append(notice)

        with_state = {key: state for key, state in self._states.items() if state}
        self._optimizer.state.update(with_state)
        return notices

    def _read_value(self, key: str, state_key: Tensor, names: Sequence[str]) -> str:
        """Read one value for the parameters of a state key. Return a notice if they differ."""
        found: dict[str, Tensor] = {}
        for name in names:
            if self._ranges.holds(PREFIX + key, name):
                found[name] = self._ranges.value(PREFIX + key, name)
        if not found:
            return ""

        value = max(found.values())
        group = self._optimizer.param_groups[0]
        on_device = group.get("fused") or group.get("capturable")
        placed = value.to(local(state_key).device) if on_device else value
        state = self._states[state_key]
        state[key] = placed if self._form.values[key] else value.item()
        for other, dtype in self._form.ranges.items():
            if other not in state:
                state[other] = torch.zeros_like(state_key, dtype=dtype, requires_grad=False)

        differing = [name for name in names if found.get(name) != value]
        if not differing:
            return ""
        return (
            f"the optimizer keeps one {key} for {len(names)} parameters here: {value:g} counts for "
            f"all, also for {differing[0]}, which had {found.get(differing[0], 'none')}"
        )


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


def _merged(fresh: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fresh schedule's state with the saved values in it."""
    merged = dict(fresh)
    for key, value in saved.items():
        if is_nested(value):
            pairs = zip(fresh[key], value, strict=True)
            merged[key] = [_merged(fresh_inner, inner) for fresh_inner, inner in pairs]
        else:
            merged[key] = value
    return merged
