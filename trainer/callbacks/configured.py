"""The callbacks of a training, in the order of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..config.train_config import TrainConfig, profiled_steps
from ..errors import Origin
from .base import Callback
from .builtin import Best, MetricsFile, Progress, SaveCheckpoints
from .numbers import FiniteNumbers
from .replicas import ReplicaCheck
from .time_limit import TimeLimit


def configured_callbacks(
    config: TrainConfig, users: Sequence[Callback], origins: Mapping[str, Origin]
) -> list[Callback]:
    """List the built-in callbacks, those that the config asks for, the user's, and the one that
    saves them all.

    Trackers and the profiler are imported only where they are asked for.
    """
    callbacks: list[Callback] = [MetricsFile(), Progress(), FiniteNumbers(config.on_nan)]
    if config.best_metric is not None:
        callbacks.append(Best(config.best_metric, config.best_mode, config.early_stop_patience))
    if config.max_time is not None:
        callbacks.append(TimeLimit(config.max_time))
    if config.trackers:
        from .tracking import Tracking

        origin = origins.get("trackers", Origin("TrainConfig", key="trackers"))
        callbacks.append(Tracking(config.trackers, origin=origin))
    if config.profile_steps is not None:
        from .profiling import Profile

        callbacks.append(Profile(*profiled_steps(config.profile_steps)))
    if config.replica_check_every is not None:
        users = [*users, ReplicaCheck(config.replica_check_every)]
    return [*callbacks, *users, SaveCheckpoints()]
