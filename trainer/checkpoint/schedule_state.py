"""The state of the learning-rate schedule."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ..data.digest import traces
from ..strategies.first_step import refuse_counters


def schedule_state(schedule: LRScheduler) -> dict[str, Any]:
    """Return class, steps and rates of a schedule, and the state that JSON can hold.

    Raises:
        CheckpointError: a function object of the schedule counts its calls, which a resume repeats.
    """
    for factor in getattr(schedule, "lr_lambdas", ()):
        before, trial = traces(factor), copy.copy(factor)
        trial(0)
        refuse_counters(trial, before)

    own = _plain(schedule.state_dict())
    counting = own if "last_epoch" in own else own["_schedulers"][0]  # a ChainedScheduler's parts
    return {
        "kind": type(schedule).__name__,
        "steps": counting["last_epoch"],
        "lr": [float(group["lr"]) for group in schedule.optimizer.param_groups],
        "own": own,
    }


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts of a schedule's state, also those of inner schedules.

    Functions and the like are not state: the settings make them again. So are the milestones of
    ``MultiStepLR``, a dictionary with the steps as keys.
    """
    plain: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, LRScheduler):
            value = value.state_dict()
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            plain[key] = [_plain(item) for item in value]
        elif not isinstance(value, dict):
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                # Rates may be tensors.
                plain[key] = json.loads(json.dumps(value, default=Tensor.item))
        elif all(isinstance(name, str) for name in value):
            plain[key] = _plain(value)
    return plain


def merged(current: Any, saved: Any) -> Any:
    """Return a value of a fresh schedule's state with the saved numbers and texts in their places.

    Inner schedules are set, and stay the same objects.
    """
    if isinstance(current, LRScheduler):
        current.load_state_dict(merged(current.state_dict(), saved))
        return current
    if isinstance(current, dict) and isinstance(saved, Mapping):
        return {**current, **{key: merged(current.get(key), saved[key]) for key in saved}}
    if isinstance(current, list) and current and isinstance(current[0], dict):
        return [merged(*pair) for pair in zip(current, saved, strict=True)]
    return saved
